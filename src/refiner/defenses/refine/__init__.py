"""The parts of Refiner: settings, start, utility and privacy metrics, solvers, projection, memory."""
