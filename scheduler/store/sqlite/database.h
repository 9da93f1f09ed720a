// SQLite with Results: a connection and its statements. One thread at a time.
#pragma once
#include <sqlite3.h>

#include <memory>
#include <string>
#include <string_view>

#include "protocol/wire/result.h"

namespace gpupool::scheduler::sqlite {

class Database;

// Of a Database that outlives it.
class Statement {
 public:
  Statement() = default;
  Statement& bind(int place, std::string_view text);  // valid until the next step() or reset()
  Statement& bind(int place, uint64_t number);
  // True: there is a row. The statement can be used again after false, an error, or reset().
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
  // Made with mode 0600 where it is not there.
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
