"""verl as a process: started, watched, ended with all that belongs to it, on one machine or several."""
