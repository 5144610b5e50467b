from rcdiag.trainers.settings_text import Written
def block(correction): return Written({})
