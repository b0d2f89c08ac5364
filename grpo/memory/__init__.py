"""How much memory and time a run will take, from the model's config.json and the settings. No torch, no model loaded.

shape.py counts the weights, embedded.py and on_verl.py the bytes of each phase on either engine, advice.py what each
knob saves and the largest batch that fits, seconds.py the time of a step, table.py writes it down. What is only
measured stands in constants.py.
"""
