// C++ wrapper of a SQLite connection and its prepared statements, used by sqlite_store.cc. Failures are
// Results with ErrorCode::unavailable. One thread at a time.
#pragma once
#include <sqlite3.h>

#include <memory>
#include <string>
#include <string_view>

#include "common/result.h"

namespace gpupool::scheduler::sqlite {

class Database;

// A prepared statement. Its Database must outlive it.
class Statement {
 public:
  Statement() = default;
  Statement& bind(int place, std::string_view text);  // `text` must outlive the last step()
  Statement& bind(int place, uint64_t number);
  // Returns true if there is a row, false at the end. After false, an error or reset() the statement can be
  // reused.
  Result<bool> step();
  void reset();
  std::string text(int column) const;
  uint64_t number(int column) const;

 private:
  friend class Database;
  struct End {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  std::unique_ptr<sqlite3_stmt, End> statement_;
};

class Database {
 public:
  // Creates the file with mode 0600 if it does not exist.
  static Result<Database> open(const std::string& file);
  Result<void> run(const char* statements);
  Result<Statement> prepare(const char* statement);

 private:
  struct Close {
    void operator()(sqlite3* connection) const { sqlite3_close_v2(connection); }
  };
  std::unique_ptr<sqlite3, Close> connection_;
};

}  // namespace gpupool::scheduler::sqlite
