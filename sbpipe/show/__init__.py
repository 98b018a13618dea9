"""What people look at: terminal, report, live page, charts, trackers. All from a run's files; it must not
know the roles.
"""
