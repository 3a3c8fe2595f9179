// Memory files: they have the requested size and can be sealed. Exceeding the file-size limit
// (ulimit -f) returns a status that names it, and never raises a signal.
#include "src/system/memory_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

TEST(MemoryFile, HasTheRequestedSizeAndCanBeSealed) {
  Result<UniqueFd> file = create_memory_file("hetcomm-test", 12345);
  ASSERT_TRUE(file.ok()) << file.status().text();
  struct stat info {};
  ASSERT_EQ(fstat(file->get(), &info), 0);
  EXPECT_EQ(info.st_size, 12345);
  EXPECT_NE(fcntl(file->get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(fcntl(file->get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
}

TEST(MemoryFile, ExceedingTheFileSizeLimitReturnsAnError) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 1000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  EXPECT_TRUE(check_file_size(1000).ok());
  EXPECT_TRUE(create_memory_file("hetcomm-test", 1000).ok());
  // The default action for SIGXFSZ, which ends the process, is in effect.
  const Result<UniqueFd> larger = create_memory_file("hetcomm-test", 1001);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(larger.status().code(), Code::kOutOfResources);
  const std::string text(larger.status().text());
  EXPECT_NE(text.find("ulimit -f"), std::string::npos) << text;
  EXPECT_NE(text.find("1001 bytes"), std::string::npos) << text;
  EXPECT_NE(text.find("1000 bytes"), std::string::npos) << text;
}

TEST(MemoryFile, FileTooLargeErrorMentionsTheUlimit) {
  const Status status = status_from_errno(EFBIG, "write");
  EXPECT_EQ(status.code(), Code::kOutOfResources);
  EXPECT_NE(status.text().find("ulimit -f"), std::string_view::npos) << status.text();
}

}  // namespace
}  // namespace hetcomm
