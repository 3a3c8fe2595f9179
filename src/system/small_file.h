// Reads files that a user names in a variable, such as secrets, keys and certificates.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace hetcomm {

struct SmallFile {
  std::string contents;
  bool everybody_reads = false;
};

// Reads a regular file of at most |max_bytes|, without blocking (a pipe without a writer is an
// error). Refuses a file that everybody can write. Every error text starts with |what|.
Result<SmallFile> read_small_file(const std::string& path, size_t max_bytes, std::string_view what);
// Reads a file with secrets. Refuses a file that others may have written too: one that belongs
// neither to the effective user nor to root, or that its group can write.
Result<SmallFile> read_private_file(const std::string& path, size_t max_bytes,
                                    std::string_view what);

}  // namespace hetcomm
