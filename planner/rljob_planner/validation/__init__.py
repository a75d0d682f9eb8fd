"""Holds the planner's predictions against published measurements.

Every row of a measurement file is predicted from hardware figures, model shapes and the workload alone, then once more after a
factor per side that was fitted on the *other* rows of its family: a factor that had seen the row would prove nothing. Rows
that cannot be predicted stay in the table with the field that is missing, so that coverage stands beside every error.
"""
