"""Signs are numbers that are read off a case, and that several causes are told by."""
