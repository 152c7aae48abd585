"""Where the numbers come from: the ledger's runs, what they add up to, the paper's own, their provenance."""
