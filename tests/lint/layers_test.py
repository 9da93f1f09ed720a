"""Tests scripts/checks/layers.py."""
import unittest

from checked_tree import CheckedTree

TABLE = """
[layers]
common = []
client = ["common"]
server = ["common"]
[rooms]
"common" = []
"client" = ["common"]
"server" = ["common", "server/quota"]
"server/quota" = []
"server/worker" = ["common", "server/quota", "server"]
"""
EXCEPTION = """
[[exceptions]]
from = "server/log*.cc"
to = "client/run.h"
reason = "the form of both"
"""
CYCLE = """
[[cycles]]
rooms = ["server/quota", "server"]
reason = "one calls the other back"
"""


class Layers(CheckedTree):
    check = "layers.py"

    def setUp(self):
        super().setUp()
        self.write("scripts/checks/layers.toml", TABLE)
        self.write("common/text.h")
        self.write("client/run.h", '#include "common/text.h"\n')
        self.write("server/pool.h", '#include <vector>\n#include "server/quota/turn.h"\n')
        self.write("server/quota/turn.h")
        self.write("server/worker/main.cc", '#include "server/pool.h"\n#include "server/worker/calls/copy.h"\n')
        self.write("server/worker/calls/copy.h", '#include "server/pool.h"\n')  # in the room server/worker

    def test_accepts_includes_along_the_table(self):
        self.write("tests/server/pool_test.cc", '#include "client/run.h"\n#include "server/pool.h"\n')
        self.write("client/run.cc", '#include "run.h"\n#include "wire.pb.h"\n#include "version.h"\n')
        self.write("client/wire.proto")
        self.write("client/version.h.in")
        self.assert_passes()

    def test_finds_an_include_of_a_layer_that_is_not_below(self):
        self.write("common/text.h", '#pragma once\n\n#include "client/run.h"\n')
        self.write("server/log.cc", '#include "client/run.h"\n')
        self.write("server/quota/form.cc", "#  include <client/run.h>\n")
        self.assert_finds("common/text.h:3: includes client/run.h: layer common may not include layer client", "server/log.cc:1: includes client/run.h: layer server",
                          "server/quota/form.cc:1: includes client/run.h: layer server")

    def test_finds_an_include_of_a_room_that_is_not_in_the_row(self):
        self.write("server/worker/calls/copy.h", '#include "common/text.h"\n')
        self.write("server/quota/turn.h", '#include "../../common/text.h"\n')
        self.write("server/pool.cc", '#include "server/worker/main.h"\n')
        self.write("server/worker/main.h")
        self.assert_finds("server/quota/turn.h:1: includes ../../common/text.h: room server/quota may not include room common",
                          "server/pool.cc:1: includes server/worker/main.h: room server may not include room server/worker",
                          "these rooms include each other, which [[cycles]] does not list: server server/worker")

    def test_a_pattern_allows_a_room_and_those_below(self):
        self.write("scripts/checks/layers.toml", TABLE.replace('["common", "server/quota", "server"]', '["server/*"]'))
        self.assert_passes()
        self.write("server/worker/main.cc", '#include "server/quota/turn.h"\n#include "common/text.h"\n')
        self.assert_finds("server/worker/main.cc:2: includes common/text.h: room server/worker may not include room common")

    def test_exceptions_are_needed_and_name_their_files(self):
        self.write("scripts/checks/layers.toml", TABLE + EXCEPTION)
        self.write("server/log_file.cc", '#include "client/run.h"\n')
        self.assert_passes()
        self.write("server/pool.cc", '#include "client/run.h"\n')
        self.assert_finds("server/pool.cc:1: includes client/run.h: layer server")
        self.write("server/pool.cc")
        self.write("server/log_file.cc")
        self.assert_finds("scripts/checks/layers.toml: the exception server/log*.cc -> client/run.h is no longer needed")

    def test_an_exception_is_no_part_of_a_cycle(self):
        self.write("scripts/checks/layers.toml", TABLE + EXCEPTION + EXCEPTION.replace("server/log*.cc", "common/text.h"))
        self.write("server/log.cc", '#include "client/run.h"\n')
        self.write("common/text.h", '#include "client/run.h"\n')
        self.assert_passes()

    def test_finds_cycles_that_are_not_listed_and_lists_that_are_no_cycles(self):
        table = TABLE.replace('"server/quota" = []', '"server/quota" = ["server"]')
        self.write("scripts/checks/layers.toml", table)
        self.write("server/quota/turn.h", '#include "server/pool.h"\n')
        self.assert_finds("these rooms include each other, which [[cycles]] does not list: server server/quota")
        self.write("scripts/checks/layers.toml", table + CYCLE)
        self.assert_passes()
        self.write("server/quota/turn.h")
        self.assert_finds("scripts/checks/layers.toml: the cycle of server server/quota is not (or no longer) one")

    def test_finds_a_longer_cycle_than_the_listed_one(self):
        table = TABLE.replace('"server/quota" = []', '"server/quota" = ["server", "server/worker"]')
        self.write("scripts/checks/layers.toml", table + CYCLE)
        self.write("server/quota/turn.h", '#include "server/pool.h"\n')
        self.write("server/quota/share.cc", '#include "server/worker/calls/copy.h"\n')
        self.assert_finds("these rooms include each other, which [[cycles]] does not list: server server/quota server/worker",
                          "scripts/checks/layers.toml: the cycle of server server/quota is not")

    def test_finds_sources_without_a_room_and_rooms_without_files(self):
        self.write("extra/tool.cc", '#include "common/text.h"\n')
        self.write("server/pool.cc", '#include "tests/helper.h"\n')
        self.write("tests/helper.h")
        self.write("scripts/checks/layers.toml", TABLE + '"server/gone" = []\n')
        self.assert_finds("extra/tool.cc: is in no room of scripts/checks/layers.toml", "server/pool.cc:1: includes tests/helper.h, which is in no room",
                          "scripts/checks/layers.toml: room server/gone has no files")

    def test_finds_quoted_includes_that_it_cannot_follow(self):
        self.write("server/pool.cc", '#include "gone.h"\n#include <grpc/grpc.h>\n// #include "commented.h"\n')
        self.assert_finds("server/pool.cc:1: includes gone.h, which is not in the tree")

    def test_finds_rows_that_contradict_the_layers(self):
        self.write("scripts/checks/layers.toml", TABLE.replace('"common" = []', '"common" = ["server/*", "other"]') + EXCEPTION.replace("the form of both", ""))
        prefix = "scripts/checks/layers.toml: "
        self.assert_finds(*(f"{prefix}[rooms] common: may not include {room}, because [layers]" for room in ("server", "server/quota", "server/worker")),
                          f"{prefix}[rooms] common: other matches no room", prefix + "{'from': 'server/log*.cc', 'to': 'client/run.h', 'reason': ''}: has no reason")

    def test_prints_the_rows_of_a_tree(self):
        self.write("server/log.cc", '#include "client/run.h"\n')
        status, lines = self.run_check("--rows")
        self.assertEqual(0, status)
        self.assertEqual(['"client" = ["common"]', '"common" = []', '"server" = ["server/quota"]', '"server/quota" = []', '"server/worker" = ["server"]'], lines)


if __name__ == "__main__":
    unittest.main()
