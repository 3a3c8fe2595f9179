// Log: a line is "hetcomm[host:rank pid N time] level: text". Levels filter lines. The caller's
// function receives one line at a time, from any thread. A file receives complete lines, appended;
// its name contains host, process and rank. Lines do not wait for a file: those written before the
// rank is known go to standard error. A pipe without a reader or a file at its size limit does not
// end the process, and the process's handling of SIGPIPE and SIGXFSZ is unchanged.
#include "src/system/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

struct Sink {
  std::vector<std::string> lines;
  std::vector<int32_t> levels;
  std::atomic<int> inside{0};
  std::atomic<bool> overlapped{false};

  static void write(void* self, int32_t level, const char* line) {
    auto* const sink = static_cast<Sink*>(self);
    if (sink->inside.fetch_add(1) != 0) sink->overlapped = true;
    sink->lines.emplace_back(line);
    sink->levels.push_back(level);
    sink->inside.fetch_sub(1);
  }
};

std::string host_name() {
  std::array<char, 65> name{};
  EXPECT_EQ(gethostname(name.data(), name.size() - 1), 0);
  return name.data();
}

// Returns |lines| with "PID" and "TIME" in place of this process's number and of well-formed
// timestamps, whatever their date.
std::string unstamped(std::string lines) {
  lines = std::regex_replace(lines, std::regex(" pid " + std::to_string(getpid()) + " "), " PID ");
  return std::regex_replace(
      lines, std::regex(R"( [0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z\])"),
      " TIME]");
}

// Returns the prefix of this process's log lines.
std::string head(const std::string& rank = "") {
  return "hetcomm[" + host_name() + rank + " PID TIME] ";
}

TEST(Log, LinesNameTheRankOnceItIsKnown) {
  Sink sink;
  Log log;
  log.set_sink(Sink::write, &sink);
  log.warn("{} of {}", 1, 2);
  log.set_rank(3);
  log.error("late");
  ASSERT_EQ(sink.lines.size(), 2u);
  EXPECT_EQ(unstamped(sink.lines[0]), head() + "warn: 1 of 2");
  EXPECT_EQ(unstamped(sink.lines[1]), head(":3") + "error: late");
  EXPECT_EQ(sink.levels, (std::vector<int32_t>{HETCOMM_LOG_WARN, HETCOMM_LOG_ERROR}));
}

class LogFiles : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(folder_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string in_folder(const std::string& name) const { return folder_ + "/" + name; }
  static std::string contents(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  std::string folder_ = testing::TempDir() + "/hetcomm-log-XXXXXX";
};

TEST_F(LogFiles, NameExpandsHostProcessAndRank) {
  Log log;
  ASSERT_TRUE(log.set_file(in_folder("%h.%p.%r.100%%"), 7).ok());
  const std::string name = host_name() + "." + std::to_string(getpid()) + ".7.100%";
  EXPECT_EQ(names(), std::vector<std::string>{name}) << "open at once, as the rank is known";
  testing::internal::CaptureStderr();
  log.warn("one");
  log.info("not at this level");
  log.error("two");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(unstamped(contents(in_folder(name))), head() + "warn: one\n" + head() + "error: two\n");
}

TEST_F(LogFiles, FileNamedByRankOpensOnceTheRankIsKnown) {
  Log log;
  ASSERT_TRUE(log.set_file(in_folder("rank%r"), std::nullopt).ok());
  EXPECT_TRUE(names().empty());
  testing::internal::CaptureStderr();
  log.warn("early");
  EXPECT_EQ(unstamped(testing::internal::GetCapturedStderr()), head() + "warn: early\n");
  log.set_rank(12);
  EXPECT_EQ(names(), std::vector<std::string>{"rank12"});
  log.warn("late");
  EXPECT_EQ(unstamped(contents(in_folder("rank12"))), head(":12") + "warn: late\n");
  // A second communicator with another rank does not change the file.
  log.set_rank(3);
  EXPECT_EQ(names(), std::vector<std::string>{"rank12"});
}

TEST_F(LogFiles, LinesAreAppendedToTheFileAndPassedToTheSink) {
  std::ofstream(in_folder("log")) << "before\n";
  Sink sink;
  Log log;
  log.set_sink(Sink::write, &sink);
  ASSERT_TRUE(log.set_file(in_folder("log"), std::nullopt).ok()) << "no rank is needed";
  log.warn("after");
  ASSERT_EQ(sink.lines.size(), 1u);
  EXPECT_EQ(unstamped(sink.lines[0]), head() + "warn: after");
  EXPECT_EQ(contents(in_folder("log")), "before\n" + sink.lines[0] + "\n");
}

TEST_F(LogFiles, UnknownPlaceholdersAreRefused) {
  for (const char* name : {"%x", "log.%", "%h%R", "%"}) {
    Log log;
    const Status status = log.set_file(in_folder(name), 0);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << name;
    EXPECT_NE(status.text().find("HETCOMM_LOG_FILE"), std::string_view::npos) << status.text();
    EXPECT_NE(status.text().find("%h is the host"), std::string_view::npos) << status.text();
  }
  EXPECT_TRUE(names().empty());
}

TEST_F(LogFiles, OpenFailureIsReportedOnceTheNameIsKnown) {
  Log log;
  const Status status = log.set_file(in_folder("none/log"), 0);
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_NE(status.text().find("none/log"), std::string_view::npos) << status.text();
  ASSERT_TRUE(log.set_file(in_folder("none/%r"), std::nullopt).ok());
  testing::internal::CaptureStderr();
  log.set_rank(1);
  log.warn("still told");
  const std::string printed = testing::internal::GetCapturedStderr();
  EXPECT_NE(printed.find("none/1"), std::string::npos) << printed;
  EXPECT_NE(printed.find("warn: still told"), std::string::npos) << printed;
}

// Log lines may contain text from peers and files.
TEST(Log, ControlCharactersInALineAreEscaped) {
  Sink sink;
  Log log;
  log.set_sink(Sink::write, &sink);
  log.error("a\x1b[2Jb\rc\nd\x7f");
  ASSERT_EQ(sink.lines.size(), 1u);
  EXPECT_TRUE(sink.lines[0].ends_with("error: a\\x1b[2Jb\\x0dc\nd\\x7f")) << sink.lines[0];
}

TEST(Log, LevelHidesLessSevereLines) {
  const LogLevel levels[] = {LogLevel::kError, LogLevel::kWarn, LogLevel::kInfo, LogLevel::kDebug,
                             LogLevel::kTrace};
  for (size_t i = 0; i < std::size(levels); ++i) {
    Sink sink;
    Log log;
    log.set_sink(Sink::write, &sink);
    log.set_level(levels[i]);
    log.error("e");
    log.warn("w");
    log.info("i");
    log.debug("d");
    log.trace("t");
    EXPECT_EQ(sink.lines.size(), i + 1);
    for (size_t j = 0; j < std::size(levels); ++j) EXPECT_EQ(log.enabled(levels[j]), j <= i);
  }
}

TEST(Log, WarnOnceWritesEachTextOnce) {
  Sink sink;
  Log log;
  log.set_sink(Sink::write, &sink);
  for (int i = 0; i < 3; ++i) {
    log.warn_once("{a}");
    log.warn_once("b");
  }
  ASSERT_EQ(sink.lines.size(), 2u);
  EXPECT_TRUE(sink.lines[0].ends_with(" warn: {a}")) << sink.lines[0];
  EXPECT_TRUE(sink.lines[1].ends_with(" warn: b")) << sink.lines[1];
}

TEST(Log, DefaultLevelIsWarn) {
  const Log log;
  EXPECT_TRUE(log.enabled(LogLevel::kWarn));
  EXPECT_FALSE(log.enabled(LogLevel::kInfo));
}

TEST(Log, WritesToStandardErrorWithoutASink) {
  Log log;
  testing::internal::CaptureStderr();
  log.warn("to people");
  EXPECT_EQ(unstamped(testing::internal::GetCapturedStderr()), head() + "warn: to people\n");
}

// Counts the deliveries of |signal| to this process.
volatile sig_atomic_t came = 0;

void count(int /*signal*/) { came = came + 1; }

bool is_pending(int signal) {
  sigset_t pending;
  sigemptyset(&pending);
  return sigpending(&pending) == 0 && sigismember(&pending, signal) == 1;
}

bool is_blocked(int signal) {
  sigset_t blocked;
  return pthread_sigmask(SIG_BLOCK, nullptr, &blocked) == 0 && sigismember(&blocked, signal) == 1;
}

// Redirects standard error to another file while the object exists.
class StandardError {
 public:
  explicit StandardError(int file) : before_(dup(STDERR_FILENO)) { dup2(file, STDERR_FILENO); }
  ~StandardError() {
    dup2(before_, STDERR_FILENO);
    close(before_);
  }
  StandardError(const StandardError&) = delete;
  StandardError& operator=(const StandardError&) = delete;

 private:
  int before_;
};

// Logs while the application's handler for |signal| is installed. The handler must not be called.
void log_beside_a_handler(Log& log, int signal) {
  struct sigaction own {};
  own.sa_handler = count;
  struct sigaction before {};
  ASSERT_EQ(sigaction(signal, &own, &before), 0);
  came = 0;
  log.warn("lost");
  EXPECT_EQ(came, 0);
  EXPECT_FALSE(is_pending(signal));
  EXPECT_FALSE(is_blocked(signal));
  raise(signal);
  EXPECT_EQ(came, 1) << "the application's own signals come as before";
  struct sigaction after {};
  ASSERT_EQ(sigaction(signal, &before, &after), 0);
  EXPECT_EQ(after.sa_handler, own.sa_handler);
}

TEST(Log, WritingToAPipeWithoutReaderRaisesNoSignal) {
  int ends[2] = {};
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  Log log;
  {
    const StandardError closed(ends[1]);
    log_beside_a_handler(log, SIGPIPE);
  }
  close(ends[1]);
}

TEST(Log, PendingSignalStaysPendingAfterAFailedWrite) {
  int ends[2] = {};
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, SIGPIPE);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &one, nullptr), 0);
  raise(SIGPIPE);
  {
    const StandardError closed(ends[1]);
    Log().warn("lost");
  }
  EXPECT_TRUE(is_pending(SIGPIPE));
  EXPECT_TRUE(is_blocked(SIGPIPE));
  const timespec at_once{};
  EXPECT_EQ(sigtimedwait(&one, nullptr, &at_once), SIGPIPE);
  EXPECT_EQ(pthread_sigmask(SIG_UNBLOCK, &one, nullptr), 0);
  close(ends[1]);
}

// Limits file sizes while the object exists.
class FileSizes {
 public:
  explicit FileSizes(rlim_t most) {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit low = before_;
    low.rlim_cur = most;
    setrlimit(RLIMIT_FSIZE, &low);
  }
  ~FileSizes() { setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizes(const FileSizes&) = delete;
  FileSizes& operator=(const FileSizes&) = delete;

 private:
  rlimit before_{};
};

TEST_F(LogFiles, WriteAtTheFileSizeLimitRaisesNoSignal) {
  Log log;
  ASSERT_TRUE(log.set_file(in_folder("log"), std::nullopt).ok());
  log.warn("in time");
  const int nowhere = ::open("/dev/null", O_WRONLY);
  {
    const FileSizes none(0);
    // The line goes to standard error instead.
    const StandardError quiet(nowhere);
    log_beside_a_handler(log, SIGXFSZ);
  }
  close(nowhere);
  EXPECT_EQ(unstamped(contents(in_folder("log"))), head() + "warn: in time\n");
}

TEST_F(LogFiles, OpeningAPipeWithoutReaderFailsInsteadOfBlocking) {
  ASSERT_EQ(mkfifo(in_folder("pipe").c_str(), 0600), 0);
  Log log;
  EXPECT_FALSE(log.set_file(in_folder("pipe"), std::nullopt).ok());
}

TEST(Log, BracesInArgumentsArePrintedLiterally) {
  Sink sink;
  Log log;
  log.set_sink(Sink::write, &sink);
  log.warn("{}", "{}%s%n");
  ASSERT_EQ(sink.lines.size(), 1u);
  EXPECT_TRUE(sink.lines[0].ends_with("warn: {}%s%n"));
}

TEST(Log, OnlyKnownLevelNamesParse) {
  const struct {
    const char* text;
    LogLevel level;
  } cases[] = {{"error", LogLevel::kError},
               {"warn", LogLevel::kWarn},
               {"info", LogLevel::kInfo},
               {"debug", LogLevel::kDebug},
               {"trace", LogLevel::kTrace}};
  for (const auto& [text, level] : cases) {
    const Result<LogLevel> parsed = parse_log_level(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(parsed.value(), level);
  }
  for (const char* const text : {"", "WARN", "warning", "1", "warn "}) {
    const Result<LogLevel> parsed = parse_log_level(text);
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument) << text;
    EXPECT_NE(parsed.status().text().find("trace"), std::string_view::npos);
  }
}

TEST(Log, LinesFromSeveralThreadsNeverOverlap) {
  Sink sink;
  Log log;
  log.set_sink(Sink::write, &sink);
  std::vector<std::thread> threads;
  for (int id = 0; id < 4; ++id) {
    threads.emplace_back([&log, id] {
      for (int i = 0; i < 50; ++i) log.warn("thread {} line {}", id, i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sink.lines.size(), 200u);
  EXPECT_FALSE(sink.overlapped);
}

}  // namespace
}  // namespace hetcomm
