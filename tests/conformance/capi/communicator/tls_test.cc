// TLS at the C ABI (the tcp_tls cases in the other suites show that it carries all traffic):
//
//   * HETCOMM_REQUIRE_TLS: tcp with TLS works between processes, shm still works, and without TLS
//     no communicator is created, with a text that says which setting is missing;
//   * ranks that differ in HETCOMM_TLS, or do not trust each other's certificates, fail on both
//     sides, in time, with a text that says so;
//   * rank 0's store is protected too.
#include <sys/wait.h>

#include <thread>

#include "tests/conformance/capi/job.h"
#include "tests/support/certificates.h"

namespace hetcomm_test {
namespace {

using hetcomm::test::Certificates;

// Each rank records here how its attempt to create a two-rank communicator ended.
struct Ends {
  hetcomm_status_t status[2] = {HETCOMM_INTERNAL, HETCOMM_INTERNAL};
  std::string text[2];
};

void create(SharedStore& store, const std::string& settings, const char* transports, int32_t rank,
            int32_t size, uint64_t timeout_ns, Ends* ends) {
  hetcomm_context_options_t options{};
  options.struct_size = sizeof(options);
  options.settings = settings.c_str();
  hetcomm_context_t* context = nullptr;
  ASSERT_EQ(hetcomm_context_create(&options, &context), HETCOMM_OK) << hetcomm_last_error();
  StoreView view(store, "job:");
  const hetcomm_bootstrap_options_t bootstrap_options = view.options(rank, size);
  hetcomm_bootstrap_t* bootstrap = nullptr;
  ASSERT_EQ(hetcomm_bootstrap_create_from_callbacks(context, &bootstrap_options, &bootstrap),
            HETCOMM_OK)
      << hetcomm_last_error();
  hetcomm_communicator_options_t wanted{};
  wanted.struct_size = sizeof(wanted);
  wanted.transports = transports;
  wanted.timeout_ns = timeout_ns;
  hetcomm_communicator_t* communicator = nullptr;
  ends->status[rank] = hetcomm_communicator_create(context, bootstrap, &wanted, &communicator);
  if (ends->status[rank] != HETCOMM_OK) ends->text[rank] = hetcomm_last_error();
  EXPECT_EQ(hetcomm_communicator_destroy(communicator), HETCOMM_OK);
  hetcomm_bootstrap_destroy(bootstrap);
  EXPECT_EQ(hetcomm_context_destroy(context), HETCOMM_OK);
}

Ends create_two(const std::string& first, const std::string& second, const char* transports,
                uint64_t timeout_ns = 5 * kSec) {
  SharedStore store;
  Ends ends;
  std::thread other([&] { create(store, second, transports, 1, 2, timeout_ns, &ends); });
  create(store, first, transports, 0, 2, timeout_ns, &ends);
  other.join();
  return ends;
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

void exchange(Member& me) {
  const uint64_t sizes[] = {8, 100'000, 8u << 20};
  for (const uint64_t size : sizes) {
    const std::vector<std::byte> out = pattern(size, size + static_cast<uint64_t>(me.rank()));
    std::vector<std::byte> in(size);
    hetcomm_request_t* receive = me.recv(me.partner(), size, in.data(), size);
    hetcomm_request_t* send = me.send(me.partner(), size, out.data(), size);
    EXPECT_EQ(finish(receive).status, HETCOMM_OK);
    EXPECT_EQ(finish(send).status, HETCOMM_OK);
    EXPECT_TRUE(holds(in, size + static_cast<uint64_t>(me.partner()), size));
  }
  me.meet();
}

TEST(Tls, RequiredTlsWorksBetweenProcesses) {
  const Certificates files;
  for (const char* transports : {"tcp", "shm", ""}) {
    const CapiCase test_case{.name = "required",
                             .transports = transports,
                             .settings = files.settings() + "REQUIRE_TLS=1;SECRET=of the job;",
                             .processes = true};
    run_job(test_case, 2, exchange);
  }
}

TEST(Tls, JobWithoutTlsIsRefusedIfTlsIsRequired) {
  for (const char* transports : {"tcp", "shm", "tcp,shm"}) {
    const Ends ends = create_two("REQUIRE_TLS=1;SECRET=s", "REQUIRE_TLS=1;SECRET=s", transports);
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(ends.status[rank], HETCOMM_INVALID_ARGUMENT);
      EXPECT_TRUE(contains(ends.text[rank], "set HETCOMM_TLS=on")) << ends.text[rank];
      EXPECT_TRUE(contains(ends.text[rank], "HETCOMM_REQUIRE_TLS")) << ends.text[rank];
    }
  }
}

// No data leaves the process.
TEST(Tls, SingleRankNeedsNoTlsEvenIfRequired) {
  const CapiCase test_case{.name = "alone", .transports = "self", .settings = "REQUIRE_TLS=1;"};
  run_job(test_case, 1, [](Member& me) { EXPECT_TRUE(me.ok()); });
}

TEST(Tls, TlsOnOnlyOneRankFailsBoth) {
  const Certificates files;
  for (const bool first : {false, true}) {
    const uint64_t before = clock_ns();
    const Ends ends =
        create_two(first ? files.settings() : "", first ? "" : files.settings(), "tcp");
    EXPECT_LT(clock_ns() - before, 4 * kSec);
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(ends.status[rank], HETCOMM_BOOTSTRAP_FAILED);
      EXPECT_TRUE(contains(ends.text[rank], "HETCOMM_TLS=on")) << ends.text[rank];
      EXPECT_TRUE(contains(ends.text[rank], "HETCOMM_TLS=off")) << ends.text[rank];
    }
  }
}

TEST(Tls, UntrustedCertificatesFailBothRanks) {
  const Certificates files;
  const Certificates others("another authority");
  const std::string foreign = Certificates::settings(others.standard(), files.authority_file());
  for (const bool first : {false, true}) {
    const Ends ends = create_two(first ? foreign : files.settings(),
                                 first ? files.settings() : foreign, "tcp", 3 * kSec);
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(ends.status[rank], HETCOMM_BOOTSTRAP_FAILED) << ends.text[rank];
      EXPECT_TRUE(contains(ends.text[rank], "certificate")) << ends.text[rank];
    }
  }
}

TEST(Tls, ErrorNamesTheUnreadableKey) {
  const Certificates files;
  auto own = files.standard();
  own.key = "/nowhere/at.all";
  const std::string settings = Certificates::settings(own, files.authority_file());
  const Ends ends = create_two(settings, settings, "tcp");
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(contains(ends.text[rank], "HETCOMM_TLS_KEY")) << ends.text[rank];
    EXPECT_TRUE(contains(ends.text[rank], "No such file")) << ends.text[rank];
  }
}

// Runs one rank of a job that is launched by variables. Returns the exit status.
int launched_rank(int rank, const std::string& port, const std::string& settings) {
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("WORLD_SIZE", "2", 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", port.c_str(), 1);
  hetcomm_context_options_t options{};
  options.struct_size = sizeof(options);
  options.settings = settings.c_str();
  hetcomm_context_t* context = nullptr;
  hetcomm_bootstrap_t* bootstrap = nullptr;
  hetcomm_communicator_t* communicator = nullptr;
  EXPECT_EQ(hetcomm_context_create(&options, &context), HETCOMM_OK) << hetcomm_last_error();
  EXPECT_EQ(hetcomm_bootstrap_create_from_environment(context, &bootstrap), HETCOMM_OK)
      << hetcomm_last_error();
  if (bootstrap == nullptr) return 1;
  EXPECT_EQ(hetcomm_communicator_create(context, bootstrap, nullptr, &communicator), HETCOMM_OK)
      << hetcomm_last_error();
  if (communicator == nullptr) return 1;
  EXPECT_EQ(hetcomm_communicator_barrier(communicator, 10 * kSec), HETCOMM_OK)
      << hetcomm_last_error();
  EXPECT_EQ(hetcomm_communicator_destroy(communicator), HETCOMM_OK);
  hetcomm_bootstrap_destroy(bootstrap);
  EXPECT_EQ(hetcomm_context_destroy(context), HETCOMM_OK);
  return ::testing::Test::HasFailure() ? 1 : 0;
}

// The store is protected, so it may distribute a random key.
TEST(Tls, RequiredTlsNeedsNoSecretWithTheStoreOfRankZero) {
  const Certificates files;
  const std::string settings = files.settings() + "REQUIRE_TLS=1;TRANSPORTS=tcp;INTERFACE=lo;";
  const std::string port = std::to_string(free_port());
  fflush(nullptr);
  pid_t children[2];
  for (int rank = 0; rank < 2; ++rank) {
    children[rank] = fork();
    ASSERT_GE(children[rank], 0);
    if (children[rank] == 0) {
      alarm(40);
      const int status = launched_rank(rank, port, settings);
      fflush(nullptr);
      _exit(status);
    }
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
}

}  // namespace
}  // namespace hetcomm_test
