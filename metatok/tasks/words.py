"""The fixed word inventory of the list tasks: 20 categories of 10 items (paper, appendix D.1.1 and H).

The first eight categories and their first words are the ones the paper's examples show; the rest are
plain English nouns. No word belongs to two categories, so an item tells its list.
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
    "Colors": "red blue green yellow purple black white brown pink gray",
    "Countries": "France Japan Brazil Canada Egypt India Spain Kenya Norway Mexico",
    "Cities": "London Paris Tokyo Rome Berlin Chicago Moscow Sydney Boston Dublin",
    "Metals": "iron gold silver copper tin lead zinc steel nickel aluminum",
    "Clothes": "shirt hat coat shoe dress sock glove scarf belt jacket",
    "Furniture": "table chair desk bed lamp sofa shelf bench mirror cabinet",
    "Vehicles": "car truck bus train boat plane bicycle tractor wagon van",
    "Drinks": "water milk tea coffee juice wine beer soda whiskey rum",
    "Birds": "eagle robin crow duck goose owl hawk swan dove turkey",
    "Trees": "oak pine maple cedar palm birch elm willow ash spruce",
    "Rooms": "kitchen bedroom bathroom garage office attic basement hall library closet",
    "Weather": "rain snow wind storm fog hail sun cloud thunder frost",
}

CATEGORIES = {name: tuple(words.split()) for name, words in _WORDS.items()}
