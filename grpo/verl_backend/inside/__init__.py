"""What runs inside verl's own processes and environment. Leaves out all that the launcher decides or shows."""
