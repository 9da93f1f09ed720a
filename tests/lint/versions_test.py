"""Tests scripts/checks/versions.py."""
import unittest

from checked_tree import CheckedTree

EMPTY = ("server/quota/account.h", "server/quota/shared_allocations.h", "server/quota/turn_word.h", "protocol/wire/checkpoint.h",
         "protocol/wire/images.h", "protocol/wire/peers.h")


class Versions(CheckedTree):
    check = "versions.py"

    def setUp(self):
        super().setUp()
        for name in EMPTY:
            self.write(name)
        self.version(1)
        self.frame()
        self.write("protocol/calls/stream.def", "CUDA_CALL(0x0301, cuStreamQuery, sync, value)\nCUDA_OLDER(cuStreamOld, cuStreamQuery)\n")
        self.write("server/handover/control.def", "// CONTROL(id, kind, body): a row\nCONTROL(1, ready, NoBody)  // text\n")
        self.message("uint64_t number = 0;  // not 0")
        self.write("server/quota/session_page.h", "struct SessionPage {\n  std::atomic<uint32_t> bell;\n};\n")
        self.write("protocol/control/quota.def", 'QUOTA_IN_WORKERS(uint32_t, streams, 4096, count, "streams", "help")\n')
        self.assert_passes("--write")

    def version(self, number):
        self.write("server/handover/handover.h", f"constexpr uint32_t kControlVersion = {number};\nvoid send();\n")

    def frame(self, members="uint32_t length = 0;\n  uint16_t id = 0;", more="", kinds="reply = 1, data = 2"):
        self.write("protocol/wire/frame.h", f"constexpr uint16_t kProtocolVersion = 1;\nenum class MessageKind : uint16_t {{\n  {kinds}\n}};\n"
                   f"struct CommandHeader {{\n  {members}\n}};\n{more}")

    def message(self, member):
        self.write("server/handover/control_messages.h", f"struct Migrate {{\n  {member}\n  int f() const {{ return 1; }}\n}};\n")

    def test_accepts_changes_of_comments_code_and_texts(self):
        self.message("uint64_t  number = 0;  /* more */\n  bool empty() const { return number == 0; }")
        self.write("protocol/control/quota.def", 'QUOTA_IN_WORKERS(uint32_t, streams, 9999, count, "streams", "other")\n')
        self.assert_passes()

    def test_finds_a_changed_member(self):
        self.message("uint32_t number = 0;")
        self.assert_finds("server/handover/versions/1.txt: not in the sources any more: uint64_t number = 0;",
                          "server/handover/versions/1.txt: new in the sources: uint32_t number = 0;",
                          "server/handover/versions/1.txt: messages or shared memory have changed")

    def test_finds_another_order(self):
        self.message("uint64_t number = 0;\n  uint64_t other = 0;")
        self.assertEqual(1, self.run_check("--write")[0])
        self.assert_passes("--write", "--unreleased")
        self.message("uint64_t other = 0;\n  uint64_t number = 0;")
        self.assert_finds("server/handover/versions/1.txt: messages or shared memory have changed (or their order)")

    def test_finds_a_new_kind(self):
        self.write("server/handover/control.def", "CONTROL(1, ready, NoBody)\nCONTROL(2, failed, NoBody)\n")
        self.assert_finds("server/handover/versions/1.txt: new in the sources: CONTROL(2, failed, NoBody)",
                          "server/handover/versions/1.txt: messages or shared memory have changed")

    def test_the_protocol_may_grow(self):
        self.frame(more="struct PingHeader {\n  uint32_t length = 0;\n};\n", kinds="reply = 1, data = 2, pong = 3")
        self.write("protocol/calls/stream.def", "CUDA_CALL(0x0300, cuStreamNew, sync)\nCUDA_BY_HAND(0x0301, cuStreamQuery, async, value)\n")
        self.assert_passes()

    def test_no_struct_of_the_protocol_grows(self):
        self.frame("uint32_t length = 0;\n  uint16_t id = 0;\n  uint16_t flags = 0;")
        self.assert_finds("protocol/wire/versions/1.txt: peers of other releases would misunderstand this")

    def test_a_reserved_field_may_get_a_name(self):
        self.message("uint64_t number = 0;\n  uint32_t reserved = 0;")
        self.frame("uint32_t length = 0;\n  uint16_t reserved = 0;")
        self.assert_passes("--write", "--unreleased")
        self.message("uint64_t number = 0;\n  uint32_t encrypts = 0;")
        self.frame("uint32_t length = 0;\n  uint16_t flags = 0;")
        self.assert_finds("protocol/wire/versions/1.txt: a reserved field has got a name",
                          "server/handover/versions/1.txt: a reserved field has got a name")
        self.assert_passes("--write")
        self.message("uint64_t number = 0;\n  uint32_t other = 0;")  # what has got a name keeps it
        self.frame("uint32_t length = 0;\n  uint32_t flags = 0;")
        self.assert_finds("server/handover/versions/1.txt: not in the sources any more: uint32_t encrypts = 0;",
                          "server/handover/versions/1.txt: new in the sources: uint32_t other = 0;",
                          "server/handover/versions/1.txt: messages or shared memory have changed",
                          "protocol/wire/versions/1.txt: not in the sources any more: uint16_t flags = 0;",
                          "protocol/wire/versions/1.txt: peers of other releases would misunderstand this")

    def test_no_enumerator_changes(self):
        self.frame(kinds="reply = 2, data = 1")
        self.assert_finds("protocol/wire/versions/1.txt: not in the sources any more: reply = 1, data = 2 }",
                          "protocol/wire/versions/1.txt: peers of other releases would misunderstand this")

    def test_the_protocol_keeps_what_it_has(self):
        self.frame("uint16_t id = 0;\n  uint32_t length = 0;")
        self.assert_finds("protocol/wire/versions/1.txt: peers of other releases would misunderstand this")
        self.frame()
        self.write("protocol/calls/stream.def", "CUDA_CALL(0x0302, cuStreamQuery, sync, value)\n")
        self.assert_finds("protocol/wire/versions/1.txt: not in the sources any more: CUDA(0x0301, cuStreamQuery)",
                          "protocol/wire/versions/1.txt: peers of other releases would misunderstand this")

    def test_a_new_version_must_be_recorded(self):
        self.version(2)
        self.assert_finds("server/handover/versions/2.txt: is missing")
        self.assert_passes("--write")
        self.assert_passes()


if __name__ == "__main__":
    unittest.main()
