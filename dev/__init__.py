"""Everything needed to run the operator on one machine for real; the product never imports it."""
