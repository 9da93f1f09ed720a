"""unittest.main() for the programs of this folder; prints a line for each skipped test, for scripts/test.sh."""
import unittest


class Result(unittest.TextTestResult):
    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        print(f"SKIPPED: {test.id()}: {reason}", flush=True)


def main():
    unittest.main(testRunner=unittest.TextTestRunner(resultclass=Result))
