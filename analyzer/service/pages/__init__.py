"""The page: what the API tells, as HTML made on the server.

Every page works as plain HTML; htmx, which lies beside the templates, only renews the parts that
change. ``routes``, ``submit`` and ``access`` answer requests, ``told`` tells their problems,
``visitor`` says who asks, ``render`` fills templates, and the other modules turn rows and documents
into what a template shows.
"""
