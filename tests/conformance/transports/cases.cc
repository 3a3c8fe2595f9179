#include <cstdlib>

#include "tests/conformance/transports/transport_test.h"
#include "tests/support/certificates.h"
#ifdef HETCOMM_TEST_FAKE_VERBS
#include "tests/support/fake_verbs.h"
#endif
#ifdef HETCOMM_TEST_FAKE_CM
#include "tests/support/fake_cm.h"
#endif
#include "transports/rdma/factory.h"
#include "transports/shm/factory.h"
#include "transports/tcp/factory.h"

namespace hetcomm::test {
namespace {

FaultPlan refusing() {
  FaultPlan plan;
  plan.refuse = 0.3;
  plan.max_delay = 8;
  return plan;
}

FaultPlan small_pieces() {
  FaultPlan plan;
  plan.max_payload_bytes = 64;
  plan.chunk_bytes = 1000;
  plan.max_delay = 3;
  return plan;
}

// The files belong to this process. Forked ranks read the same files.
std::string tls() {
  static const Certificates files;
  return files.settings();
}

std::vector<TransportCase> base_cases() {
  std::vector<TransportCase> cases = {
      {.name = "shm", .transport = "shm", .settings = ""},
      {.name = "shm_tiny_ring",
       .transport = "shm",
       .settings = "SHM_RING_BYTES=64K;SHM_CHUNK=4K;SHM_BULK=copy"},
      {.name = "shm_read", .transport = "shm", .settings = "SHM_BULK=read"},
      {.name = "shm_copy", .transport = "shm", .settings = "SHM_BULK=copy"},
      {.name = "shm_faulty", .transport = "shm", .faulty = true, .faults = refusing()},
      {.name = "tcp", .transport = "tcp", .settings = ""},
      {.name = "tcp_tiny_chunks", .transport = "tcp", .settings = "TCP_CHUNK=4K"},
      {.name = "tcp_three_streams", .transport = "tcp", .settings = "TCP_STREAMS=3;TCP_CHUNK=64K"},
      {.name = "tcp_small_sockets",
       .transport = "tcp",
       .settings = "TCP_SOCKET_BUFFER=128K;TCP_STREAMS=2;TCP_CHUNK=16K"},
      {.name = "tcp_faulty", .transport = "tcp", .faulty = true, .faults = refusing()},
      {.name = "tcp_tls", .transport = "tcp", .settings = tls()},
      {.name = "tcp_tls_small_sockets",
       .transport = "tcp",
       .settings = tls() + "TCP_SOCKET_BUFFER=128K;TCP_STREAMS=2;TCP_CHUNK=16K"},
      {.name = "tcp_small_pieces", .transport = "tcp", .faulty = true, .faults = small_pieces()},
      {.name = "rdma", .transport = "rdma", .settings = ""},
#ifdef HETCOMM_TEST_FAKE_VERBS
      // Threads only, because the fabric is in this process.
      {.name = "rdma_fake", .transport = "rdma", .settings = "RDMA_SLICE=16K"},
#endif
#ifdef HETCOMM_TEST_FAKE_CM
      {.name = "rdma_fake_cm", .transport = "rdma", .settings = "RDMA_CONNECT=cm"},
#endif
      {.name = "rdma_cm", .transport = "rdma", .settings = "RDMA_CONNECT=cm"},
      {.name = "rdma_small_fragments",
       .transport = "rdma",
       .settings = "RDMA_SLICE=16K;RDMA_CACHE_BYTES=0;RDMA_MTU=256"},
      {.name = "rdma_faulty", .transport = "rdma", .faulty = true, .faults = refusing()},
  };
  for (TransportCase& each : cases)
    each.accepted_survives = each.transport == "shm" && !each.faulty;
  return cases;
}

}  // namespace

std::vector<TransportCase> transport_cases() {
  std::vector<TransportCase> cases;
  for (const Mode mode : {Mode::kThreads, Mode::kProcesses}) {
    for (TransportCase each : base_cases()) {
      if (each.name.starts_with("rdma_fake") && mode == Mode::kProcesses) continue;
      each.mode = mode;
      cases.push_back(each);
    }
  }
  return cases;
}

std::vector<TransportCase> process_cases() {
  std::vector<TransportCase> cases = transport_cases();
  std::erase_if(cases, [](const TransportCase& each) { return each.mode != Mode::kProcesses; });
  return cases;
}

std::vector<TransportCase> plain_cases() {
  std::vector<TransportCase> cases = transport_cases();
  std::erase_if(cases, [](const TransportCase& each) { return each.name != each.transport; });
  return cases;
}

std::unique_ptr<TransportFactory> make_factory(const TransportCase& test_case) {
#ifdef HETCOMM_TEST_FAKE_VERBS
  if (test_case.name.starts_with("rdma_fake")) {
    static const bool made = (FakeFabric::reset(), true);
    static_cast<void>(made);
    const rdma::Cm* cm = nullptr;
#ifdef HETCOMM_TEST_FAKE_CM
    cm = &FakeCm::cm();
#endif
    return rdma::make_factory(FakeFabric::verbs(), cm);
  }
#endif
  auto factory = test_case.transport == "shm"    ? make_shm_factory()
                 : test_case.transport == "rdma" ? make_rdma_factory()
                                                 : make_tcp_factory();
  if (!test_case.faulty) return factory;
  return std::make_unique<FaultyFactory>(std::move(factory), test_case.faults);
}

std::string case_name(const ::testing::TestParamInfo<TransportCase>& info) {
  return info.param.name + (info.param.mode == Mode::kThreads ? "_threads" : "_processes");
}

bool long_run() {
  const char* value = std::getenv("HETCOMM_TEST_LONG");
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace hetcomm::test
