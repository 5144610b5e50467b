"""The tabs of the page: each module has plain functions from results to the data of one tab."""
