"""What TensorBoard's pages show, apart from curves: a module for each page."""
