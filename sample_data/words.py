"""Word lists for the story templates, large enough to train a BPE vocabulary of 1,024."""


def words(text: str) -> list[str]:
    """Split a text at white space."""
    return text.split()


MEN = words("""
Adam Alan Albert Alex Andrew Anton Arthur Ben Bruno Carl Charles Daniel David Dennis Edgar
Eric Felix Frank Fred George Gustav Harry Henry Hugo Ivan Jack Jacob James Jonas Julian Kevin Leo
Louis Lucas Marco Martin Max Michael Nathan Noah Oliver Oscar Otto Paul Peter Philip Ralph Robert
Samuel Simon Stefan Theo Thomas Tim Victor Walter William""")
WOMEN = words("""
Ada Agnes Alice Amelia Anna Barbara Bella Camilla Carmen Clara Daisy Diana Elena Ella
Emily Emma Eva Flora Gloria Grace Hanna Helen Ida Ines Irene Jane Judith Julia Karen Laura Lena
Linda Lucy Maria Martha Mia Monica Nadia Nina Nora Olga Olivia Paula Petra Rachel Rosa Ruth Sara
Sophie Susan Tina Vera Victoria Wanda Zoe""")
THINGS = words("""
apples badges balls bananas beads bells bolts books bottles bowls boxes bricks brushes
buttons cakes candles cards carrots chairs cherries coins cookies crayons cups dolls eggs envelopes
feathers figs flags flowers forks gloves grapes hats jars kites ladders lamps leaves lemons letters
magnets maps marbles melons mirrors mushrooms needles nuts onions oranges paintings pears pebbles
pencils photos plates plums pots potatoes puzzles ribbons rings robots rocks ropes rulers screws
seeds shells shirts spoons stamps stickers stones tickets tiles tomatoes towels toys""")
PLACES = words("""
beach bridge cafe camp castle church corner factory farm fair forest garage garden
harbor hotel kitchen lake library market museum office park river school shop stable station
stadium theater tower village workshop yard zoo""")
GAIN = words("buys finds collects wins makes gathers earns discovers receives orders borrows picks")
LOSE = words("sells loses drops breaks donates hides mails spends wastes misplaces lends removes")
LINKS = ["Then", "Next", "Later", "After that", "Soon", "In the evening", "The next day", "Again"]
REMARKS = [
    "It is a sunny day.",
    "The weather is cold.",
    "Everyone is happy.",
    "A dog barks loudly.",
    "The {place} is crowded.",
    "{other} walks to the {place}.",
    "{other} watches quietly.",
    "Rain falls on the {place}.",
    "{other} is tired.",
    "Music plays at the {place}.",
]
