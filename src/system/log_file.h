// LogFile appends log lines to a file. The file's name can contain the placeholders %h (the host),
// %p (the process id), %r (the rank) and %% (a percent sign), so every rank of a job can have its
// own file.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/system/unique_fd.h"

namespace hetcomm {

class LogFile {
 public:
  // Creates a LogFile. |name| can contain placeholders. Opens the file, unless the name contains %r
  // and |rank| is not set; in that case set_rank() opens it. Fails with kInvalidArgument for an
  // unknown placeholder, and if the file cannot be opened. A pipe without a reader cannot be
  // opened.
  static Result<LogFile> create(std::string_view name, std::string_view host,
                                std::optional<int> rank);

  // Opens the file unless it is open already. Fails like create().
  Status set_rank(int rank);
  bool is_open() const { return fd_.valid(); }
  // Appends |line| and a line feed with one write(). Returns false if nothing or only a part was
  // written. The caller must block the signals that a write can raise (write_signals.h).
  bool append(std::string_view line) const;

 private:
  LogFile(std::string_view name, std::string_view host) : name_(name), host_(host) {}
  Status open(std::optional<int> rank);

  std::string name_;
  std::string host_;
  UniqueFd fd_;
};

}  // namespace hetcomm
