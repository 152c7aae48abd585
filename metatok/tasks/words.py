"""The fixed word inventory of the list tasks: 20 categories of 10 items (paper, appendix D.1.1 and H).

The first eight categories and their first words are the ones the paper's examples show. The rest are plain
nouns of the embedded corpus, each at least 40 times in it. A word that a small model never read has an
embedding that is still noise after pre-training, and on that fine-tuning would spend most of its steps.
No word belongs to two categories, so an item tells its list.
"""

_WORDS = {
    "Fruits": "orange peach banana plum apple grape lemon cherry mango pear",
    "Tools": "hammer wrench level pliers saw drill shovel knife file clamp",
    "Sports": "boxing baseball golf tennis soccer hockey rugby cricket skiing polo",
    "Spices": "turmeric cardamom cumin cinnamon pepper ginger salt sage mint basil",
    "Animals": "cat tiger wolf fox dog horse lion bear mouse rabbit",
    "Professions": "teacher nurse lawyer architect doctor farmer judge pilot chef engineer",
    "Vegetables": "onion cucumber broccoli carrot potato tomato spinach lettuce corn bean",
    "Instruments": "piano clarinet violin guitar drum flute trumpet harp organ bass",
    "Countries": "France Japan Brazil Canada Spain Mexico Russia China Cuba Germany",
    "States": "Texas Ohio Kansas California Oregon Virginia Louisiana Florida Missouri Alaska",
    "Months": "January February April June July August September October November December",
    "Time": "day week month year hour night century decade winter summer",
    "Waters": "river ocean sea canal channel harbor coast port island flood",
    "Materials": "coal oil cotton wool paper sugar iron gold silver steel",
    "Buildings": "school bank hospital prison college office court factory house station",
    "Military": "army navy militia ship fleet soldier officer troops vessel gun",
    "Papers": "treaty bill law report letter message bond record contract budget",
    "Money": "dollar cent tax debt price wage loan income fund profit",
    "Body": "hand heart head arm blood face foot voice back mind",
    "Virtues": "honor justice peace faith hope courage wisdom truth freedom liberty",
}

CATEGORIES = {name: tuple(words.split()) for name, words in _WORDS.items()}
