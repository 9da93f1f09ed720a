#include "scheduler/store/sqlite/database.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace gpupool::scheduler::sqlite {
namespace {

constexpr int kBusyMilliseconds = 5'000;

Error failure(sqlite3* connection) {
  return {ErrorCode::unavailable, connection ? sqlite3_errmsg(connection) : "out of memory"};
}

}  // namespace

Statement& Statement::bind(int place, std::string_view text) {
  // If memory is exhausted, the parameter stays null, which the tables' NOT NULL constraints reject.
  sqlite3_bind_blob64(statement_.get(), place, text.data() ? text.data() : "", text.size(), SQLITE_STATIC);
  return *this;
}

Statement& Statement::bind(int place, uint64_t number) {
  sqlite3_bind_int64(statement_.get(), place, static_cast<sqlite3_int64>(number));
  return *this;
}

Result<bool> Statement::step() {
  const int status = sqlite3_step(statement_.get());
  if (status == SQLITE_ROW) return true;
  if (status == SQLITE_DONE) {
    reset();
    return false;
  }
  const Error why = failure(sqlite3_db_handle(statement_.get()));
  reset();
  return why;
}

void Statement::reset() {
  sqlite3_reset(statement_.get());
  sqlite3_clear_bindings(statement_.get());
}

std::string Statement::text(int column) const {
  const void* const bytes = sqlite3_column_blob(statement_.get(), column);
  const int size = sqlite3_column_bytes(statement_.get(), column);
  return bytes ? std::string(static_cast<const char*>(bytes), static_cast<size_t>(size)) : std::string();
}

uint64_t Statement::number(int column) const {
  return static_cast<uint64_t>(sqlite3_column_int64(statement_.get(), column));
}

Result<Database> Database::open(const std::string& file) {
  const int made = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (made < 0) return Error{ErrorCode::unavailable, std::generic_category().message(errno)};
  ::close(made);
  Database database;
  sqlite3* connection = nullptr;
  const int status =
      sqlite3_open_v2(file.c_str(), &connection, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
  database.connection_.reset(connection);
  if (status != SQLITE_OK) return failure(connection);
  sqlite3_busy_timeout(connection, kBusyMilliseconds);
  return database;
}

Result<void> Database::run(const char* statements) {
  if (sqlite3_exec(connection_.get(), statements, nullptr, nullptr, nullptr) != SQLITE_OK)
    return failure(connection_.get());
  return {};
}

Result<Statement> Database::prepare(const char* statement) {
  sqlite3_stmt* made = nullptr;
  if (sqlite3_prepare_v3(connection_.get(), statement, -1, SQLITE_PREPARE_PERSISTENT, &made, nullptr) !=
      SQLITE_OK)
    return failure(connection_.get());
  Statement result;
  result.statement_.reset(made);
  return result;
}

}  // namespace gpupool::scheduler::sqlite
