"""Small trainings that look healthy and do not resume exactly, one mistake each: what ``rlaunch rehearse`` is for."""
