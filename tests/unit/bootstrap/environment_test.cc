// Bootstrap from the environment, with one process per rank. It finds the store on MASTER_PORT or
// after a foreign service that occupies that port, in any start order. It agrees on a secret, names
// missing and malformed variables, lets groups of ranks exchange values under one name, and handles
// the secret file with care. Its store listens only where the other ranks look for it. Named jobs
// on one port do not mix. The ranks may have been launched by Slurm, PMI, PMIx or Open MPI.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/bootstrap/bootstrap.h"
#include "src/bootstrap/launch.h"
#include "src/bootstrap/secret.h"
#include "src/capi/variables.h"
#include "src/net/listening_socket.h"
#include "src/system/clock.h"
#include "src/system/unique_fd.h"

namespace hetcomm {
namespace {

using testing::Each;
using testing::HasSubstr;
constexpr uint64_t kSecond = 1'000'000'000;

struct Process {
  pid_t pid = -1;
  UniqueFd output;
};

// Runs |body| in a child and returns the child and a pipe with its result.
Process spawn(const std::function<std::string()>& body) {
  int fds[2] = {-1, -1};
  EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
  Process process{.pid = fork(), .output = UniqueFd(fds[0])};
  const UniqueFd input(fds[1]);
  if (process.pid != 0) return process;
  alarm(50);
  const std::string text = body();
  const bool written = write(input.get(), text.data(), text.size()) >= 0;
  _exit(written ? 0 : 1);
}

std::string collect(Process process) {
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = read(process.output.get(), buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(got));
  }
  int status = 0;
  waitpid(process.pid, &status, 0);
  if (!WIFEXITED(status)) text += fmt::format(" (killed by signal {})", WTERMSIG(status));
  return text;
}

class EnvironmentTest : public testing::Test {
 protected:
  EnvironmentTest() {
    for (const char* name : {"RANK",
                             "WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "TORCHELASTIC_RUN_ID",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "SLURM_STEP_NUM_TASKS",
                             "SLURM_STEP_NODELIST",
                             "SLURM_JOB_ID",
                             "SLURM_STEP_ID",
                             "SLURM_RESTART_COUNT",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "PMIX_RANK",
                             "PMIX_SIZE",
                             "PMIX_NAMESPACE",
                             "PBS_JOBID",
                             "LSB_JOBID",
                             "FLUX_JOB_ID"}) {
      unsetenv(name);
    }
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    // Looks for a free port whose successors are probably free too.
    UniqueFd probe = listen_on(Address::parse_numeric("0.0.0.0", 0).value(), 1).value();
    port_ = bound_address(probe.get())->port();
    if (port_ > 65000) port_ = 20000;
    setenv("MASTER_PORT", std::to_string(port_).c_str(), 1);
  }

  static Result<std::unique_ptr<Bootstrap>> create(Log& log, const std::string& settings) {
    return bootstrap_from_environment(Config::load(kVariables, nullptr, settings, log).value(),
                                      log);
  }

  // Gathers the ranks once and returns the key that they agree on.
  static std::string join(int rank, int size, const std::string& settings, uint64_t timeout) {
    setenv("RANK", std::to_string(rank).c_str(), 1);
    setenv("WORLD_SIZE", std::to_string(size).c_str(), 1);
    Log log;
    log.set_level(LogLevel::kError);
    auto bootstrap = create(log, settings);
    if (!bootstrap.ok()) return "create: " + std::string(bootstrap.status().text());
    const uint64_t deadline = now_ns() + timeout;
    Bootstrap& job = *bootstrap.value();
    Result<Secret> secret = job.secret(deadline);
    if (!secret.ok()) return "secret: " + std::string(secret.status().text());
    std::string text = "ok";
    for (int round = 0; round < 2; ++round) {
      const auto mine = static_cast<std::byte>(rank);
      auto values = job.allgather("world", {&mine, 1}, deadline);
      if (!values.ok()) return "gather: " + std::string(values.status().text());
      for (const auto& value : values.value())
        text += fmt::format(" {}", static_cast<int>(value[0]));
    }
    return text + fmt::format(" key {}", static_cast<int>(secret->bytes()[0]));
  }

  std::vector<std::string> run(int size, const std::vector<int>& ranks,
                               const std::function<std::string(int)>& settings,
                               uint64_t timeout = 20 * kSecond) {
    std::vector<Process> processes;
    for (const int rank : ranks) {
      processes.push_back(spawn([&] { return join(rank, size, settings(rank), timeout); }));
      usleep(20'000);
    }
    std::vector<std::string> texts;
    for (Process& process : processes) texts.push_back(collect(std::move(process)));
    return texts;
  }
  std::vector<std::string> run(int size, const std::vector<int>& ranks,
                               const std::string& settings = "", uint64_t timeout = 20 * kSecond) {
    return run(
        size, ranks, [&](int /*rank*/) { return settings; }, timeout);
  }

  uint16_t port_ = 0;
};

TEST_F(EnvironmentTest, RanksConnectInEitherStartOrderAndShareAKey) {
  for (const std::vector<int>& order : {std::vector<int>{0, 1, 2}, {2, 1, 0}}) {
    const std::vector<std::string> texts = run(3, order);
    EXPECT_THAT(texts[0], HasSubstr("ok 0 1 2 0 1 2 key"));
    EXPECT_THAT(texts, Each(texts[0]));
  }
}

// Exchanges values in blocks of two ranks, among the block leaders, and as a broadcast from rank 0,
// twice under one name. Then all ranks exchange together.
std::string exchange_by_groups(Bootstrap& job, int rank, uint64_t deadline) {
  const auto mine = static_cast<std::byte>(rank);
  std::string text;
  const auto add = [&](char kind, const Result<std::vector<std::vector<std::byte>>>& values) {
    text += kind;
    if (!values.ok()) {
      text += values.status().text();
      return;
    }
    for (const auto& value : values.value()) text += std::to_string(static_cast<int>(value[0]));
  };
  for (int round = 0; round < 2; ++round) {
    const RankGroup block{
        .first = rank / 2 * 2, .step = 1, .count = std::min(2, job.size() - rank / 2 * 2)};
    add('b', job.allgather_among("world", block, {&mine, 1}, deadline));
    const RankGroup leaders{.first = 0, .step = 2, .count = (job.size() + 1) / 2};
    if (leaders.has(rank)) add('l', job.allgather_among("world", leaders, {&mine, 1}, deadline));
    auto told = job.broadcast_among("world", {.count = job.size()}, {&mine, 1}, deadline);
    text += told.ok() ? fmt::format("t{} ", static_cast<int>(told->front())) : told.status().text();
  }
  add('a', job.allgather("world of all", {&mine, 1}, deadline));
  return text;
}

TEST_F(EnvironmentTest, GroupsExchangeRepeatedlyUnderOneName) {
  std::vector<Process> processes;
  for (int rank = 0; rank < 5; ++rank) {
    processes.push_back(spawn([rank] {
      setenv("RANK", std::to_string(rank).c_str(), 1);
      setenv("WORLD_SIZE", "5", 1);
      Log log;
      log.set_level(LogLevel::kError);
      auto bootstrap = create(log, "");
      if (!bootstrap.ok()) return std::string(bootstrap.status().text());
      if (!(*bootstrap)->exchanges_by_groups()) return std::string("no groups");
      return exchange_by_groups(*bootstrap.value(), rank, now_ns() + 20 * kSecond);
    }));
  }
  std::vector<std::string> texts;
  for (Process& process : processes) texts.push_back(collect(std::move(process)));
  for (int rank = 0; rank < 5; ++rank) {
    const std::string block = rank == 4 ? "b4" : rank < 2 ? "b01" : "b23";
    const std::string round = block + (rank % 2 == 0 ? "l024" : "") + "t0 ";
    EXPECT_EQ(texts[static_cast<size_t>(rank)], round + round + "a01234");
  }
}

TEST_F(EnvironmentTest, ConfiguredSecretMustMatchOnAllRanks) {
  const std::vector<std::string> same = run(2, {0, 1}, "SECRET=a");
  EXPECT_THAT(same[0], HasSubstr("ok 0 1"));
  EXPECT_EQ(same[0], same[1]);
  const auto different = run(
      2, {0, 1}, [](int rank) { return fmt::format("SECRET={};BOOTSTRAP_TIMEOUT=2s", rank); },
      3 * kSecond);
  EXPECT_THAT(different[0], HasSubstr("rank 1 of 2 did not join"));
  EXPECT_THAT(different[1], HasSubstr("job secret"));
  // The text lists it before the addresses without a listener.
  EXPECT_LT(different[1].find("job secret"), different[1].find("refused")) << different[1];
}

// Each torchrun agent counts its own restarts.
TEST_F(EnvironmentTest, RanksConnectDespiteDifferentRestartCounts) {
  setenv("TORCHELASTIC_RUN_ID", "run", 1);
  const auto texts = run(3, {0, 1, 2}, [](int rank) {
    setenv("TORCHELASTIC_RESTART_COUNT", std::to_string(rank).c_str(), 1);
    return std::string("SECRET=a");
  });
  EXPECT_THAT(texts, Each(HasSubstr("ok 0 1 2")));
  unsetenv("TORCHELASTIC_RESTART_COUNT");
  unsetenv("TORCHELASTIC_RUN_ID");
}

// The other ranks wait at the address where rank 0 would have its store.
TEST_F(EnvironmentTest, StartupFailureOfRankZeroIsReportedToOtherRanks) {
  const auto texts = run(
      3, {1, 0, 2},
      [](int rank) {
        return fmt::format("BOOTSTRAP_TIMEOUT=40s;SECRET_FILE={}",
                           rank == 0 ? "/nonexistent/secret" : "");
      },
      40 * kSecond);
  EXPECT_THAT(texts[1], HasSubstr("HETCOMM_SECRET_FILE '/nonexistent/secret'"));
  for (const std::string& text : {texts[0], texts[2]}) {
    EXPECT_THAT(text, HasSubstr("rank 0 has failed at 127.0.0.1:"));
    EXPECT_THAT(text, HasSubstr("HETCOMM_SECRET_FILE '/nonexistent/secret'"));
  }
}

TEST_F(EnvironmentTest, OccupiedPortIsRetried) {
  auto taken =
      listen_on(Address::parse_numeric("127.0.0.1", static_cast<uint16_t>(port_ + 20)).value(), 64);
  ASSERT_TRUE(taken.ok());
  const std::string settings = fmt::format("STORE_PORT={};BOOTSTRAP_TIMEOUT=20s", port_ + 20);
  Process zero = spawn([&] {
    taken->reset();
    return join(0, 2, settings, 20 * kSecond);
  });
  Process one = spawn([&] {
    taken->reset();
    return join(1, 2, settings, 20 * kSecond);
  });
  usleep(1'500'000);
  taken->reset();
  EXPECT_THAT(collect(std::move(zero)), HasSubstr("ok 0 1"));
  EXPECT_THAT(collect(std::move(one)), HasSubstr("ok 0 1"));
}

TEST_F(EnvironmentTest, ForbiddenPortIsNotRetried) {
  const uint64_t begun_ns = now_ns();
  const std::string text = collect(spawn([&] {
    // Root may listen on any port, and some hosts let every user do so.
    if (geteuid() == 0 && seteuid(65534) != 0) return std::string("no other user");
    const Address forbidden = Address::parse_numeric("127.0.0.1", 1).value();
    if (listen_on(forbidden, 1).ok()) return std::string("allowed");
    return join(0, 2, "STORE_PORT=1;BOOTSTRAP_TIMEOUT=100s", 100 * kSecond);
  }));
  if (text == "no other user" || text == "allowed") GTEST_SKIP() << "port 1 is not forbidden here";
  EXPECT_THAT(text, HasSubstr("rank 0 found no free port from 1 to 1"));
  EXPECT_LT(now_ns() - begun_ns, 50 * kSecond);
}

TEST_F(EnvironmentTest, StoreAvoidsAForeignServiceOnMasterPort) {
  const UniqueFd foreign = listen_on(Address::parse_numeric("0.0.0.0", port_).value(), 64).value();
  EXPECT_THAT(run(3, {1, 0, 2}), Each(HasSubstr("ok 0 1 2")));
}

TEST_F(EnvironmentTest, ConfiguredStorePortIsTheOnlyPortTried) {
  const std::string settings = fmt::format("STORE_PORT={};BOOTSTRAP_TIMEOUT=2s", port_ + 20);
  EXPECT_THAT(run(2, {0, 1}, settings), Each(HasSubstr("ok 0 1")));
  const UniqueFd taken =
      listen_on(Address::parse_numeric("0.0.0.0", static_cast<uint16_t>(port_ + 20)).value(), 64)
          .value();
  EXPECT_THAT(run(2, {0}, settings)[0],
              HasSubstr(fmt::format("found no free port from {0} to {0}", port_ + 20)));
}

TEST_F(EnvironmentTest, RanksConnectOverIpv6) {
  setenv("MASTER_ADDR", "::1", 1);
  EXPECT_THAT(run(2, {0, 1}), Each(HasSubstr("ok 0 1")));
}

TEST_F(EnvironmentTest, JobWithoutARequiredSecretIsRefused) {
  const auto texts = run(2, {0, 1}, "REQUIRE_SECRET=on;BOOTSTRAP_TIMEOUT=2s");
  EXPECT_THAT(texts, Each(HasSubstr("HETCOMM_REQUIRE_SECRET")));
  EXPECT_THAT(run(2, {0, 1}, "REQUIRE_SECRET=on;SECRET=a"), Each(HasSubstr("ok 0 1")));
  EXPECT_THAT(run(1, {0}, "REQUIRE_SECRET=on"), Each(HasSubstr("ok 0")));
}

// Both jobs use one port, and their processes start in any order.
TEST_F(EnvironmentTest, NamedJobsOnTheSamePortDoNotMix) {
  std::vector<Process> processes;
  for (const auto& [rank, job] : {std::pair(1, "a"), {1, "b"}, {0, "a"}, {0, "b"}}) {
    const int mine = rank;
    const std::string settings = fmt::format("JOB={}", job);
    processes.push_back(spawn([&] { return join(mine, 2, settings, 20 * kSecond); }));
  }
  std::vector<std::string> texts;
  for (Process& process : processes) texts.push_back(collect(std::move(process)));
  EXPECT_THAT(texts, Each(HasSubstr("ok 0 1 0 1 key")));
  EXPECT_EQ(texts[0], texts[2]);
  EXPECT_EQ(texts[1], texts[3]);
}

TEST_F(EnvironmentTest, RankThatJoinsAnotherJobGetsAnError) {
  for (const char* secret : {"", "SECRET=one for both;"}) {
    const auto texts = run(
        2, {0, 1},
        [&](int rank) { return fmt::format("{}BOOTSTRAP_TIMEOUT=1s;JOB=job {}", secret, rank); },
        kSecond);
    EXPECT_THAT(texts[1], HasSubstr("the peer belongs to another job"));
    EXPECT_THAT(texts[1], HasSubstr("this is job 'job 1' by HETCOMM_JOB"));
    EXPECT_THAT(texts[0], HasSubstr("rank 1 of 2 did not join"));
  }
}

// The key that connections prove differs, even if the secret is the same.
TEST_F(EnvironmentTest, JobNameIsPartOfTheKey) {
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "1", 1);
  Log log;
  const auto key = [&](const std::string& settings) {
    return create(log, "SECRET=s" + settings).value()->secret(kForever).value();
  };
  EXPECT_EQ(key(";JOB=a"), key(";JOB=a"));
  EXPECT_NE(key(";JOB=a"), key(";JOB=b"));
  EXPECT_NE(key(";JOB=a"), key(""));
}

using Variables = std::vector<std::pair<const char*, const char*>>;

class LaunchTest : public EnvironmentTest {
 protected:
  LaunchTest() {
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
  }
  // Reads the launch variables while |variables| are set.
  Launch launch(const Variables& variables, const std::string& settings = "") {
    for (const auto& [name, value] : variables) setenv(name, value, 1);
    Result<Launch> read = read_launch(Config::load(kVariables, nullptr, settings, log_).value());
    for (const auto& [name, value] : variables) unsetenv(name);
    EXPECT_TRUE(read.ok()) << read.status().text();
    return read.ok() ? read.value() : Launch();
  }
  Log log_;
};

TEST_F(LaunchTest, SlurmVariablesGiveRankSizeHostAndPort) {
  const Launch step = launch({{"SLURM_PROCID", "3"},
                              {"SLURM_NTASKS", "8"},
                              {"SLURM_STEP_NODELIST", "node[003-004],other"},
                              {"SLURM_JOB_ID", "100000"},
                              {"SLURM_STEP_ID", "2"}});
  EXPECT_EQ(step.rank, 3);
  EXPECT_EQ(step.size, 8);
  EXPECT_EQ(step.master_address, "node003");
  EXPECT_EQ(step.job.name, "100000.2");
  EXPECT_GE(step.master_port, 15'000);
  EXPECT_LT(step.master_port, 32'768);
  const Launch named = launch({{"SLURM_PROCID", "3"},
                               {"SLURM_NTASKS", "8"},
                               {"SLURM_STEP_NUM_TASKS", "4"},
                               {"SLURM_STEP_NODELIST", "a"},
                               {"SLURM_JOB_ID", "100000"},
                               {"SLURM_STEP_ID", "3"},
                               {"MASTER_ADDR", "b"}});
  EXPECT_EQ(named.size, 4);
  EXPECT_EQ(named.master_address, "b");
  EXPECT_NE(named.master_port, step.master_port);
  const Launch with_port = launch({{"SLURM_PROCID", "0"},
                                   {"SLURM_NTASKS", "2"},
                                   {"SLURM_STEP_NODELIST", "a"},
                                   {"SLURM_JOB_ID", "1"},
                                   {"MASTER_PORT", "777"}});
  EXPECT_EQ(with_port.master_port, 777);
}

TEST_F(LaunchTest, SlurmBatchScriptIsNotARank) {
  setenv("SLURM_PROCID", "0", 1);
  setenv("SLURM_NTASKS", "8", 1);
  const Status status = read_launch(Config::load(kVariables, nullptr, "", log_).value()).status();
  EXPECT_THAT(std::string(status.text()), HasSubstr("WORLD_SIZE is not set"));
}

TEST_F(LaunchTest, FirstHostOfANodeListIsParsed) {
  EXPECT_EQ(first_host("a"), "a");
  EXPECT_EQ(first_host("a-1,b"), "a-1");
  EXPECT_EQ(first_host("n[7]"), "n7");
  EXPECT_EQ(first_host("n[07-12,15],m"), "n07");
  EXPECT_EQ(first_host("rack[2-3]node[001,004]"), "rack2node001");
  EXPECT_EQ(first_host("n[1-4]-ib.cluster,m"), "n1-ib.cluster");
  EXPECT_EQ(first_host(""), "");
  EXPECT_EQ(first_host("n[1"), "");
}

TEST_F(LaunchTest, InnermostLauncherIsUsed) {
  Variables variables = {{"SLURM_PROCID", "0"},        {"SLURM_STEP_NUM_TASKS", "4"},
                         {"SLURM_STEP_NODELIST", "s"}, {"SLURM_JOB_ID", "9"},
                         {"SLURM_STEP_ID", "0"},       {"PMIX_RANK", "3"},
                         {"PMIX_NAMESPACE", "space"}};
  const Launch by_pmix = launch(variables);  // srun --mpi=pmix
  EXPECT_EQ(by_pmix.rank, 3);
  EXPECT_EQ(by_pmix.size, 4);
  EXPECT_EQ(by_pmix.master_address, "s");
  EXPECT_EQ(by_pmix.job.name, "space");
  variables.insert(variables.end(), {{"OMPI_COMM_WORLD_RANK", "5"}, {"OMPI_COMM_WORLD_SIZE", "6"}});
  EXPECT_EQ(launch(variables).rank, 5);
  EXPECT_EQ(launch(variables).size, 6);
  variables.insert(variables.end(), {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "m"}});
  const Launch by_torchrun = launch(variables);
  EXPECT_EQ(by_torchrun.rank, 1);
  EXPECT_EQ(by_torchrun.size, 2);
  EXPECT_EQ(by_torchrun.master_address, "m");
  EXPECT_EQ(by_torchrun.master_port, 29500);
  EXPECT_EQ(launch({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "m"}}).rank, 1);
}

TEST_F(LaunchTest, MpirunOnOneHostNeedsNoAddress) {
  const Launch read = launch({{"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "2"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(read.master_address, "127.0.0.1");
}

TEST_F(LaunchTest, JobNameComesFromTheLauncher) {
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "1", 1);
  EXPECT_EQ(launch({}).job.name, "");
  EXPECT_EQ(launch({{"SLURM_JOB_ID", "9"}}).job.name, "9");
  EXPECT_EQ(launch({{"SLURM_JOB_ID", "9"}}).job.source, "SLURM_JOB_ID");
  EXPECT_EQ(launch({{"SLURM_JOB_ID", "9"}, {"TORCHELASTIC_RUN_ID", "none"}}).job.name, "9");
  EXPECT_EQ(launch({{"SLURM_JOB_ID", "9"}, {"TORCHELASTIC_RUN_ID", "run"}}).job.name, "run");
  EXPECT_EQ(launch({{"TORCHELASTIC_RUN_ID", "run"}}, "JOB=mine").job.name, "mine");
}

// Processes from an earlier start of a Slurm job belong to another job.
TEST_F(LaunchTest, RestartedSlurmJobsHaveDifferentNames) {
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "1", 1);
  const auto name = [&](const char* restarts, const char* step) {
    return launch(
               {{"SLURM_JOB_ID", "9"}, {"SLURM_RESTART_COUNT", restarts}, {"SLURM_STEP_ID", step}})
        .job.name;
  };
  for (const char* step : {"", "0"}) {
    EXPECT_EQ(name("0", step), name("", step));
    EXPECT_NE(name("1", step), name("", step));
    EXPECT_NE(name("1", step), name("2", step));
  }
  const Variables named{{"SLURM_JOB_ID", "9"}, {"SLURM_RESTART_COUNT", "1"}};
  EXPECT_EQ(launch(named, "JOB=mine").job.name, "mine");
}

// Ranks that srun started connect without further variables.
TEST_F(LaunchTest, RanksOfASlurmStepConnect) {
  setenv("SLURM_STEP_NODELIST", "localhost", 1);
  setenv("SLURM_JOB_ID", std::to_string(getpid()).c_str(), 1);
  setenv("SLURM_NTASKS", "2", 1);
  std::vector<Process> processes;
  for (const char* rank : {"1", "0"}) {
    processes.push_back(spawn([&]() -> std::string {
      setenv("SLURM_PROCID", rank, 1);
      log_.set_level(LogLevel::kError);
      auto bootstrap = create(log_, "");
      if (!bootstrap.ok()) return std::string(bootstrap.status().text());
      auto all = bootstrap.value()->allgather("world", {}, now_ns() + 20 * kSecond);
      return fmt::format("ok {}", all.ok() ? all->size() : 0);
    }));
  }
  for (Process& process : processes) EXPECT_EQ(collect(std::move(process)), "ok 2");
  unsetenv("SLURM_STEP_NODELIST");
  unsetenv("SLURM_JOB_ID");
  unsetenv("SLURM_NTASKS");
}

// Returns the addresses with a listener at |port|, as /proc/net/tcp writes them.
std::vector<std::string> listeners_at(uint16_t port) {
  std::vector<std::string> found;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    std::string number;
    std::string local;
    std::string remote;
    std::string state;
    std::string rest;
    while (lines >> number >> local >> remote >> state && std::getline(lines, rest)) {
      if (state == "0A" && local.ends_with(fmt::format(":{:04X}", port))) {
        found.push_back(local.substr(0, local.rfind(':')));
      }
    }
  }
  return found;
}

// Rank 0's store. Its set-up does not wait for other ranks.
class StorePlaceTest : public EnvironmentTest {
 protected:
  StorePlaceTest() {
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "2", 1);
    log_.set_level(LogLevel::kError);
  }
  std::unique_ptr<Bootstrap> start(const std::string& settings = "") {
    auto made = create(log_, fmt::format("STORE_PORT={};", port_) + settings);
    EXPECT_TRUE(made.ok()) << made.status().text();
    return made.ok() ? std::move(made).value() : nullptr;
  }
  Log log_;
};

constexpr const char* kLoopback = "0100007F";

TEST_F(StorePlaceTest, StoreListensOnlyOnLoopbackIfMasterAddressIsLoopback) {
  for (const char* interface : {"", "INTERFACE=lo", "INTERFACE=127.0.0.0/8"}) {
    const auto bootstrap = start(interface);
    EXPECT_THAT(listeners_at(port_), testing::ElementsAre(kLoopback)) << interface;
  }
  setenv("MASTER_ADDR", "localhost", 1);
  const auto bootstrap = start("FAMILY=ipv4");
  EXPECT_THAT(listeners_at(port_), testing::ElementsAre(kLoopback));
}

TEST_F(StorePlaceTest, StoreListensOnTheMasterAddress) {
  std::string master;
  const auto all =
      choose_interfaces(Config::load(kVariables, nullptr, "FAMILY=ipv4", log_).value());
  ASSERT_TRUE(all.ok());
  for (const InterfaceAddress& entry : all.value()) {
    if (!entry.address.is_loopback()) master = entry.address.to_string();
  }
  if (master.empty()) GTEST_SKIP() << "this host has no address but loopback";
  master.resize(master.rfind(':'));
  setenv("MASTER_ADDR", master.c_str(), 1);
  const auto bootstrap = start();
  const std::vector<std::string> listeners = listeners_at(port_);
  ASSERT_EQ(listeners.size(), 1u);
  EXPECT_NE(listeners[0], kLoopback);
  EXPECT_NE(listeners[0], "00000000");
}

// 192.0.2.0/24 belongs to no host; it stands for a translated address.
TEST_F(StorePlaceTest, StoreDoesNotListenOnAForeignMasterAddress) {
  setenv("MASTER_ADDR", "192.0.2.77", 1);
  {
    const auto bootstrap = start("INTERFACE=lo;FAMILY=ipv4");
    EXPECT_THAT(listeners_at(port_), testing::ElementsAre(kLoopback));
  }
  const auto bootstrap = start();
  EXPECT_THAT(listeners_at(port_), testing::ElementsAre("00000000"));
}

// Returns the warnings of |count| jobs, created one after the other in one process.
std::vector<std::string> warnings_of(int count, const std::function<void(Log&)>& create) {
  const std::string text = collect(spawn([&] {
    std::string lines;
    for (int i = 0; i < count; ++i) {
      Log log;
      log.set_sink(
          [](void* to, int32_t /*level*/, const char* line) {
            *static_cast<std::string*>(to) += fmt::format("{}\n", line);
          },
          &lines);
      create(log);
    }
    return lines;
  }));
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST_F(StorePlaceTest, JobWithoutASecretLogsOneWarning) {
  const auto warnings = [&](const std::string& settings) {
    return warnings_of(2, [&](Log& log) {
      EXPECT_TRUE(create(log, fmt::format("STORE_PORT={};{}", port_, settings)).ok());
    });
  };
  EXPECT_THAT(warnings(""), testing::ElementsAre(HasSubstr("this job has no secret")));
  EXPECT_THAT(warnings("SECRET=a"), testing::IsEmpty());
  setenv("WORLD_SIZE", "1", 1);
  EXPECT_THAT(warnings(""), testing::IsEmpty());
}

// The store is no longer needed once the last communicator has been created.
TEST_F(StorePlaceTest, DestroyingTheBootstrapClosesTheStore) {
  start().reset();
  EXPECT_TRUE(listeners_at(port_).empty());
}

TEST_F(EnvironmentTest, ErrorNamesMissingRanksAtTheDeadline) {
  const std::vector<std::string> texts = run(4, {0, 2}, "", kSecond);
  EXPECT_THAT(texts, Each(HasSubstr("ranks 1, 3 of 4 did not join within")));
}

// Each process has its own store: the second one's is not at the first port.
TEST_F(EnvironmentTest, MissingRankErrorMentionsAPossibleSecondRankZero) {
  const std::vector<std::string> texts = run(2, {0, 0}, "", kSecond);
  EXPECT_THAT(texts, Each(HasSubstr("rank 1 of 2 did not join")));
  EXPECT_THAT(texts, testing::Contains(HasSubstr("another process that is rank 0")));
}

TEST_F(EnvironmentTest, SingleRankNeedsNoAddress) {
  unsetenv("MASTER_ADDR");
  EXPECT_THAT(run(1, {0})[0], HasSubstr("ok 0 0 key"));
}

TEST_F(EnvironmentTest, ErrorNamesMissingOrMalformedVariables) {
  Log log;
  const auto fails_with = [&](const char* what) {
    auto bootstrap = create(log, "BOOTSTRAP_TIMEOUT=1s");
    ASSERT_FALSE(bootstrap.ok());
    EXPECT_EQ(bootstrap.status().code(), Code::kBootstrapFailed);
    EXPECT_THAT(std::string(bootstrap.status().text()), HasSubstr(what));
  };
  fails_with("WORLD_SIZE is not set");
  setenv("WORLD_SIZE", "2", 1);
  fails_with("RANK is not set");
  setenv("RANK", "2", 1);
  fails_with("RANK: '2' is not a number from 0 to 1");
  setenv("RANK", "x", 1);
  fails_with("RANK: 'x'");
  setenv("RANK", "1", 1);
  setenv("MASTER_PORT", "70000", 1);
  fails_with("MASTER_PORT: '70000'");
  setenv("MASTER_PORT", std::to_string(port_).c_str(), 1);
  unsetenv("MASTER_ADDR");
  fails_with("MASTER_ADDR is not set");
  setenv("MASTER_ADDR", "no-such-host.invalid", 1);
  fails_with("no-such-host.invalid");
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  fails_with("rank 0's store was not found");
}

class SecretFileTest : public testing::Test {
 protected:
  ~SecretFileTest() override { unlink(path_.c_str()); }

  Result<std::optional<Secret>> load(const std::string& contents, mode_t mode,
                                     const std::string& more = "") {
    unlink(path_.c_str());
    const UniqueFd file(open(path_.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    EXPECT_EQ(write(file.get(), contents.data(), contents.size()),
              static_cast<ssize_t>(contents.size()));
    EXPECT_EQ(fchmod(file.get(), mode), 0);
    return load_setting("SECRET_FILE=" + path_ + more);
  }
  Result<std::optional<Secret>> load_setting(const std::string& settings) {
    return configured_secret(Config::load(kVariables, nullptr, settings, log_).value(), log_);
  }
  static void collect(void* self, int32_t /*level*/, const char* line) {
    static_cast<SecretFileTest*>(self)->lines_.emplace_back(line);
  }

  const std::string path_ = testing::TempDir() + "hetcomm-secret-" + std::to_string(getpid());
  Log log_;
  std::vector<std::string> lines_;
};

TEST_F(SecretFileTest, SecretFileEqualsTheVariableWithoutLineEndings) {
  log_.set_sink(collect, this);
  const Secret direct = *load_setting("SECRET=abc").value();
  EXPECT_EQ(*load("abc\n", 0600).value(), direct);
  EXPECT_EQ(*load("abc\r\n", 0600).value(), direct);
  EXPECT_NE(*load("abd", 0600).value(), direct);
  EXPECT_EQ(*load("other", 0600, ";SECRET=abc").value(), direct);
  EXPECT_TRUE(lines_.empty());
  EXPECT_EQ(*load("abc", 0644).value(), direct);
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_THAT(lines_[0], HasSubstr("every user of this host may read it"));
  EXPECT_FALSE(load_setting("").value().has_value());
}

TEST_F(SecretFileTest, UnsafeOrInvalidSecretFilesAreRefused) {
  for (const mode_t mode : {0602u, 0660u, 0620u}) {
    EXPECT_EQ(load("abc", mode).status().code(), Code::kPermissionDenied) << mode;
  }
  EXPECT_TRUE(load("abc", 0440).ok());
  EXPECT_FALSE(load("", 0600).ok());
  EXPECT_FALSE(load("\n\n", 0600).ok());
  EXPECT_FALSE(load(std::string(5000, 'x'), 0600).ok());
  EXPECT_EQ(load_setting("SECRET_FILE=/nonexistent").status().code(), Code::kNotFound);
  EXPECT_FALSE(load_setting("SECRET_FILE=/tmp").ok());
  const std::string pipe = path_ + ".pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_FALSE(load_setting("SECRET_FILE=" + pipe).ok());
  unlink(pipe.c_str());
}

TEST_F(SecretFileTest, SecretFilesOfOtherUsersAreRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  ASSERT_TRUE(load("abc", 0600).ok());
  constexpr uid_t kSomebody = 12345;
  ASSERT_EQ(chown(path_.c_str(), kSomebody, kSomebody), 0);
  const Status foreign = load_setting("SECRET_FILE=" + path_).status();
  EXPECT_EQ(foreign.code(), Code::kPermissionDenied);
  EXPECT_THAT(std::string(foreign.text()), HasSubstr("belongs to user 12345"));
  // Tests the user's own file and root's file.
  for (const uid_t owner : {kSomebody, uid_t{0}}) {
    ASSERT_EQ(chown(path_.c_str(), owner, owner), 0);
    ASSERT_EQ(chmod(path_.c_str(), 0644), 0);
    ASSERT_EQ(seteuid(kSomebody), 0);
    const bool ok = load_setting("SECRET_FILE=" + path_).ok();
    ASSERT_EQ(seteuid(0), 0);
    EXPECT_TRUE(ok) << owner;
  }
}

struct Region {
  uintptr_t begin = 0;
  uintptr_t end = 0;
};

// Returns the writable memory regions that a core dump of this process would contain.
std::vector<Region> dumped_regions() {
  std::vector<Region> regions;
  std::ifstream lines("/proc/self/smaps");
  Region region;
  bool writable = false;
  for (std::string line; std::getline(lines, line);) {
    unsigned long begin = 0;
    unsigned long end = 0;
    char access[5] = {};
    if (sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, access) == 3) {
      region = {begin, end};
      writable = access[0] == 'r' && access[1] == 'w';
    } else if (line.starts_with("VmFlags:") && writable && line.find(" dd") == std::string::npos) {
      regions.push_back(region);
    }
  }
  return regions;
}

// Returns the places of |needle| in those regions. The read buffer is excluded from core dumps too.
std::vector<std::string> copies_in_a_core_dump(const Secret& needle) {
  constexpr size_t kPiece = 1 << 20;
  void* const base =
      mmap(nullptr, kPiece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_EQ(madvise(base, kPiece, MADV_DONTDUMP), 0);
  const ConstByteSpan key = needle;
  std::vector<std::string> found;
  for (const Region& region : dumped_regions()) {
    for (uintptr_t at = region.begin; at < region.end; at += kPiece - key.size()) {
      iovec local{base, kPiece};
      iovec remote{reinterpret_cast<void*>(at), std::min<size_t>(kPiece, region.end - at)};
      const ssize_t got = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
      if (got <= 0) continue;
      const void* const hit = memmem(base, static_cast<size_t>(got), key.data(), key.size());
      if (hit != nullptr) found.push_back(fmt::format("region {:x}", region.begin));
    }
  }
  munmap(base, kPiece);
  return found;
}

TEST_F(StorePlaceTest, CoreDumpsContainNoKeyOfAConfiguredSecret) {
  const std::string path = testing::TempDir() + "hetcomm-dump-" + std::to_string(getpid());
  {
    std::ofstream(path) << "a secret of sixteen bytes or more";
    ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  }
  setenv("WORLD_SIZE", "2", 1);
  const auto bootstrap = start("SECRET_FILE=" + path);
  unlink(path.c_str());
  ASSERT_NE(bootstrap, nullptr);
  const Secret secret = bootstrap->secret(now_ns() + kSecond).value();
  EXPECT_THAT(copies_in_a_core_dump(secret), testing::IsEmpty());
  // The search must find an existing copy.
  const std::vector<std::byte> copy(secret.bytes().begin(), secret.bytes().end());
  EXPECT_FALSE(copies_in_a_core_dump(secret).empty());
  EXPECT_EQ(copy[0], secret.bytes()[0]);
}

}  // namespace
}  // namespace hetcomm
