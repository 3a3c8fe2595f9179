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

// Reads a regular file of at most |max_bytes|. Fails for anything else, and does not block on a
// pipe. Refuses a file that everybody can write. Every error text starts with |what|.
Result<SmallFile> read_small_file(const std::string& path, size_t max_bytes, std::string_view what);
// Reads a file with secrets. In addition, refuses a file that another user may have written: one
// that belongs neither to the effective user nor to root, or that its group can write.
Result<SmallFile> read_private_file(const std::string& path, size_t max_bytes,
                                    std::string_view what);

}  // namespace hetcomm
