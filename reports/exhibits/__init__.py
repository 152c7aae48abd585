"""The paper's tables and figures with this ledger's numbers, one file a group."""
