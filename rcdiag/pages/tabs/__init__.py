"""Each module fills one tab of the page: plain functions from results to the tab's data."""
