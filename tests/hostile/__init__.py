"""One test for each attack on a federation that has been tried: it goes on, and says what it has
refused."""
