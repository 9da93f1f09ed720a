// Moving a session from one worker (the source) to another one (the target), on this or another host
// (docs/adr/0037-migration.md). The client opens a session with the target's server, gives the source a key
// to it, and continues there when the source has sent everything. Conventions as in commands.h.
#pragma once
#include <cstdint>
#include <string_view>

#include "protocol/wire/peers.h"

namespace gpupool::wire {

// MessageKind::migration_wish: the address of the other server (text of the message's rest, as in GPUPOOL, or
// kSameServer for another worker of the same server) follows; without an address the session is to be
// suspended, to a file that poold writes (docs/adr/0038-suspended-sessions.md). The client answers with
// end_migration, also if it does not try.
constexpr std::string_view kSameServer = ".";
struct MigrationWish {
  uint64_t number;  // of poold's; returned in end_migration
};

// adopt_session: the first command of a session that is to become a copy of another one. The commands that
// make its objects come from the source, on a connection with the key of this command
// (peers::copy_key(bulk token, sequence)). No body. Reply: AdoptedSession if the copy is complete, else an
// error and the reason (text); then the session must end.
constexpr uint64_t kAdoptSequence = 1;  // of adopt_session; no copy has it
constexpr uint32_t kMaxAdoptReasonBytes = 1024;
struct AdoptedSession {
  uint64_t sequence;  // of the source's last command; the client's next command has the next number
};
// The source sends for each command an AdoptedCommand, the command (CommandHeader and body) and the expected
// reply. The last command is end_migration of the source's last sequence number.
struct AdoptedCommand {
  uint32_t reply_bytes;  // bytes of the expected reply behind the command
  uint32_t checks;       // 1: another reply than the expected one ends the adoption
};

// begin_migration: connects the source with the target and sends what the session has, while the client goes
// on. Reply, when what is left can be sent quickly: empty, or an error and the reason (text); then nothing
// has changed, and the target must be given up.
struct BeginMigration {
  PeerTarget target;  // `copy` is the sequence number of adopt_session
};
// In place of the target, when poold has asked for a suspension: its file. Nothing is sent before
// migrate_session then.
inline bool is_file(const PeerTarget& target) {
  return target.port == 0 && target.address == decltype(target.address){};
}

// Values of Hello.bulk_link with a resume_proof: the client of a suspended session waits until it is resumed
// (the reply then is that of a new session, whose first command is adopt_session), or says that the session
// has gone on and its file is not needed any more. Replies with status SUSPENDED: later, or at another
// address.
constexpr uint32_t kReturnsLink = 0x101, kForgetsLink = 0x102;

// migrate_session: sends the rest, after begin_migration. The client sends no other command before the reply,
// which is the last message if the migration was successful. Reply: empty, or an error and the reason (text);
// then nothing has changed. CUDA_ERROR_NOT_READY: earlier commands wait for the client, or the device still
// has work of the session after `patience_ms`, or the reason (text); the client goes on and tries again.
struct MigrateSession {
  uint32_t patience_ms;
  uint32_t reserved;
};

// end_migration: the client's answer to a MigrationWish, with the reason (text) if it did not migrate; the
// source then forgets the target. If it did, the source's session ends. `sequence`: in the source's stream to
// the target only.
struct EndMigration {
  uint64_t number;    // of the MigrationWish; 0: nobody asked
  uint64_t sequence;  // of the source's last command
  uint32_t migrated;  // 1: the session continues with the other server
  uint32_t reserved;
};

// fill_variable: the name (text) and then `size` bytes of a part of a module's or library's variable follow.
// Only in the stream of adopt_session.
struct FillVariable {
  uint64_t owner;  // module or library
  uint64_t offset;
  uint64_t size;
};

// place_variable: the name (text) of a variable of the module or library that is loaded next follows. The
// device gives it this address if it can. Only in the stream of adopt_session.
struct PlaceVariable {
  uint64_t address;
};

// fill_array: the bytes of a part of an array follow, row by row. Only in the stream of adopt_session. `x`
// and `width` are in bytes.
struct FillArray {
  uint64_t array;  // array or mipmapped array
  uint32_t level;  // of a mipmapped array, else 0
  uint32_t reserved;
  uint32_t x, y, z;
  uint32_t width, height, depth;
};

// fill_memory: the bytes of a part of memory of cuMemCreate follow, which need not be mapped. Only in the
// stream of adopt_session.
struct FillMemory {
  uint64_t memory;   // handle; 0: it was released
  uint64_t address;  // of a mapping of released memory, else 0
  uint64_t offset;   // in the memory
};

static_assert(kIsBody<MigrationWish, 8>);
static_assert(kIsBody<AdoptedSession, 8>);
static_assert(kIsBody<AdoptedCommand, 8>);
static_assert(kIsBody<BeginMigration, 80>);
static_assert(kIsBody<MigrateSession, 8>);
static_assert(kIsBody<EndMigration, 24>);
static_assert(kIsBody<FillVariable, 24>);
static_assert(kIsBody<PlaceVariable, 8>);
static_assert(kIsBody<FillArray, 40>);
static_assert(kIsBody<FillMemory, 24>);

}  // namespace gpupool::wire
