"""Fast code behind one question: who computes?"""
