"""The parts of Refiner: start, utility, privacy, solver, projection, memory."""
