"""CA+ and CAEFC beside other streaming clusterers: rows per second."""
