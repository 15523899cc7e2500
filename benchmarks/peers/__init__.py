"""Systems with which this project is compared. Each runs in its own virtual environment."""
