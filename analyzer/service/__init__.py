"""The service: jobs of a team over HTTP, kept in one database, run by workers.

``schema`` and ``database`` hold the rows, ``states`` says which change of a job is allowed,
``queue`` hands jobs to workers and fences what they write, ``worker`` runs them as children of its
own, and ``api`` and the modules named ``routes_…`` are the API.
"""
