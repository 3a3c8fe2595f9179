// Making connections:
//
//   * a descriptor is at most 1 KiB, and is sufficient for reach();
//   * transports and endpoints always have the abilities that their capabilities state;
//   * hostile descriptor bytes are refused by reach(), or end in on_connected with an error, in
//     bounded time;
//   * connecting to a peer that is gone, or that cannot prove the secret or the epoch, ends in an
//     error with a text;
//   * on_connected is called exactly once, or never after cancel_connect();
//   * connections can be made and closed repeatedly without leaking descriptors, and many can exist
//     at once;
//   * destroying an accepted endpoint fails the other side;
//   * when the process runs out of descriptors, connects fail with an error, and work again later.
#include <sys/resource.h>

#include <chrono>
#include <list>
#include <thread>

#include "tests/conformance/transports/transport_test.h"
#include "tests/support/descriptors.h"

namespace hetcomm::test {
namespace {

constexpr uint64_t kConnectLimit = 40 * kSecond;

#if defined(HETCOMM_ASAN) || defined(HETCOMM_TSAN)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

class Connecting : public TransportTest {};
// Only processes can die and have their own limit on descriptors.
class ConnectingProcesses : public TransportTest {};

std::vector<TransportCase> plain_process_cases() {
  std::vector<TransportCase> cases = plain_cases();
  std::erase_if(cases, [](const TransportCase& each) { return each.mode != Mode::kProcesses; });
  return cases;
}

// Connects to rank 1 once. Returns ok or the error.
Status connect_once(Node& node, ConstByteSpan descriptor) {
  const int before = node.connect_outcomes;
  node.connected.erase(1);
  node.connect(1, descriptor);
  EXPECT_EQ(node.connect_outcomes, before) << "on_connected from inside connect()";
  node.until(
      "on_connected", [&] { return node.connect_outcomes > before; }, kConnectLimit);
  node.linger(kMillisecond);
  EXPECT_EQ(node.connect_outcomes, before + 1);
  return node.connected.contains(1) ? Status() : node.connect_failed.at(1);
}

TEST_P(Connecting, SmallContactIsEnoughToReachThePeer) {
  const auto near = [&](Side& side) {
    const std::vector<std::byte> descriptor = side.take_bytes();
    EXPECT_LE(descriptor.size(), 1024u);
    const Status reach = side.node().transport().reach(descriptor);
    EXPECT_TRUE(reach.ok()) << reach.text();
    EXPECT_EQ(side.node().transport().contact().size() > 1024, false);
    side.post('d');
  };
  const auto far = [&](Side& side) {
    side.post_bytes(side.node().transport().contact());
    (void)side.take<char>(kConnectLimit);
  };
  run_pair(options(), near, far);
}

// Returns random bytes, a truncated descriptor, or a descriptor with flipped bits.
std::vector<std::byte> hostile(const std::vector<std::byte>& good, Random& random) {
  std::vector<std::byte> bytes = good;
  switch (random.below(4)) {
    case 0:
      bytes.resize(random.below(200));
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
      break;
    case 1:
      bytes.resize(random.below(good.size() + 1));
      break;
    case 2:
      bytes.resize(good.size() + random.between(1, 300), static_cast<std::byte>(random.next()));
      break;
    default:
      for (uint64_t i = random.between(1, 4); i > 0; --i) {
        bytes[random.below(bytes.size())] ^= static_cast<std::byte>(1u << random.below(8));
      }
  }
  return bytes;
}

TEST_P(Connecting, AbilitiesMatchCapabilities) {
  const auto both = [](Side& side) {
    Transport& transport = side.node().transport();
    const Capabilities& at_best = transport.capabilities();
    EXPECT_EQ(transport.abilities().regions != nullptr, at_best.regions || at_best.map);
    EXPECT_EQ(transport.abilities().devices != nullptr, at_best.device_memory);
    Rail& rail = side.connect();
    const Capabilities& here = rail.capabilities();
    const EndpointAbilities can = rail.endpoint().abilities();
    EXPECT_EQ(can.puts != nullptr, here.put || here.regions);
    EXPECT_EQ(can.gets != nullptr, here.get || here.regions);
    EXPECT_EQ(can.immediate_gets != nullptr, here.gets_now);
    EXPECT_EQ(can.exposer != nullptr, here.put || here.get);
    EXPECT_EQ(can.mapper != nullptr, here.map);
    EXPECT_LE(here.get, at_best.get);
    EXPECT_LE(here.map, at_best.map);
    side.meet();
    const EndpointAbilities again = rail.endpoint().abilities();
    EXPECT_EQ(again.puts, can.puts);
    EXPECT_EQ(again.gets, can.gets);
    EXPECT_EQ(again.exposer, can.exposer);
  };
  run_pair(options(), both, both);
}

TEST_P(Connecting, ReachSurvivesHostileContacts) {
  const auto alone = [&](Side& side) {
    const std::vector<std::byte> good = side.node().transport().contact();
    Random random(seed());
    for (int i = 0; i < 3000; ++i) {
      const std::vector<std::byte> bytes = hostile(good, random);
      const Status status = side.node().transport().reach(bytes);
      if (!status.ok()) {
        EXPECT_FALSE(status.text().empty());
      }
    }
  };
  run_pair(options(), alone, [](Side&) {});
}

TEST_P(Connecting, ConnectToATruncatedOrRandomContactFails) {
  // Flipped bits may name foreign hosts, whose answers may come at any time. So this test uses only
  // bytes that cannot be valid.
  const auto near = [&](Side& side) {
    const std::vector<std::byte> good = side.take_bytes();
    Random random(seed());
    for (int i = 0; i < 20; ++i) {
      std::vector<std::byte> bytes(random.below(good.size()));
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
      if (i % 2 == 0) std::copy_n(good.begin(), bytes.size(), bytes.begin());
      EXPECT_FALSE(connect_once(side.node(), bytes).ok()) << "round " << i;
    }
    const Status outcome = connect_once(side.node(), good);
    EXPECT_TRUE(outcome.ok()) << outcome.text();
    side.post('d');
  };
  const auto far = [&](Side& side) {
    side.post_bytes(side.node().transport().contact());
    (void)side.take<char>(kConnectLimit);
    // The other side may learn of the connection first.
    side.node().until("the connection", [&] { return side.node().accepts > 0; });
    EXPECT_EQ(side.node().accepts, 1);
  };
  run_pair(options(), near, far);
}

TEST_P(ConnectingProcesses, ConnectToADeadProcessFails) {
  const auto near = [&](Side& side) {
    const std::vector<std::byte> descriptor = side.take_bytes();
    side.kill_far();
    usleep(20'000);
    const Status outcome = connect_once(side.node(), descriptor);
    EXPECT_FALSE(outcome.ok());
    EXPECT_FALSE(outcome.text().empty());
  };
  const auto far = [&](Side& side) {
    side.post_bytes(side.node().transport().contact());
    side.node().linger(kPatience);
  };
  run_pair(options(), near, far);
}

TEST_P(Connecting, ConnectToADestroyedTransportFails) {
  const auto near = [&](Side& side) {
    const std::vector<std::byte> descriptor = side.take_bytes();
    (void)side.take<char>(kConnectLimit);
    EXPECT_FALSE(connect_once(side.node(), descriptor).ok());
    // The peer returns with another descriptor.
    side.post('r');
    const Status outcome = connect_once(side.node(), side.take_bytes());
    EXPECT_TRUE(outcome.ok()) << outcome.text();
    side.post('d');
  };
  const auto far = [&](Side& side) {
    side.post_bytes(side.node().transport().contact());
    side.reset_node();
    side.post('g');
    (void)side.take<char>(kConnectLimit);
    side.post_bytes(side.node().transport().contact());
    (void)side.take<char>(kConnectLimit);
  };
  run_pair(options(), near, far);
}

void expect_refused(const PairOptions& pair, const char* what) {
  const auto near = [&](Side& side) {
    const Status outcome = connect_once(side.node(), side.take_bytes());
    EXPECT_FALSE(outcome.ok()) << what;
    EXPECT_FALSE(outcome.text().empty());
    side.post('d');
  };
  const auto far = [&](Side& side) {
    side.post_bytes(side.node().transport().contact());
    (void)side.take<char>(kConnectLimit);
    EXPECT_EQ(side.node().accepts, 0) << what;
  };
  run_pair(pair, near, far);
}

Credentials with_incarnations(Credentials credentials, uint64_t near, uint64_t far) {
  credentials.incarnations =
      std::make_shared<const std::vector<uint64_t>>(std::vector<uint64_t>{near, far});
  return credentials;
}

TEST_P(Connecting, ConnectWithWrongMeshOrIncarnationFails) {
  PairOptions wrong_mesh = options();
  wrong_mesh.far_credentials = wrong_mesh.credentials;
  wrong_mesh.far_credentials.identity.instance[15] ^= std::byte{1};
  expect_refused(wrong_mesh, "another mesh");
  PairOptions restarted = options();
  restarted.far_credentials = with_incarnations(restarted.credentials, 1, 3);
  restarted.credentials = with_incarnations(restarted.credentials, 1, 2);
  expect_refused(restarted, "another process as rank 1");
  PairOptions stranger = options();
  stranger.far_credentials = with_incarnations(stranger.credentials, 1, 2);
  stranger.credentials = with_incarnations(stranger.credentials, 4, 2);
  expect_refused(stranger, "another process as rank 0");
}

TEST_P(Connecting, ConnectWithWrongSecretJobOrEpochFails) {
  PairOptions wrong_secret = options();
  wrong_secret.far_credentials = wrong_secret.credentials;
  wrong_secret.far_credentials.secret = random_secret().value();
  expect_refused(wrong_secret, "another secret");
  PairOptions wrong_epoch = options();
  wrong_epoch.far_credentials = wrong_epoch.credentials;
  ++wrong_epoch.far_credentials.identity.epoch;
  expect_refused(wrong_epoch, "another epoch");
  PairOptions wrong_job = options();
  wrong_job.far_credentials = wrong_job.credentials;
  wrong_job.far_credentials.identity.job[3] ^= std::byte{1};
  expect_refused(wrong_job, "another job");
}

TEST_P(Connecting, ConnectCanBeCancelledAtAnyPoint) {
  const int count = rounds(40, 500);
  const auto near = [&](Side& side) {
    Node& node = side.node();
    const std::vector<std::byte> descriptor = side.take_bytes();
    Random random(seed());
    for (int i = 0; i < count; ++i) {
      const int before = node.connect_outcomes;
      node.connect(1, descriptor);
      random_steps(node, random);
      if (node.connect_outcomes == before) {
        node.transport().cancel_connect({.rank = 1});
        node.linger(random.below(kMillisecond));
        EXPECT_EQ(node.connect_outcomes, before) << "on_connected after cancel_connect";
      }
      node.connected.clear();
    }
    const Status outcome = connect_once(node, descriptor);
    EXPECT_TRUE(outcome.ok()) << outcome.text();
    send_pattern(*node.connected.at(1), 7, 50, 1);
    (void)side.take<char>(kConnectLimit);
  };
  const auto far = [&](Side& side) {
    side.post_bytes(side.node().transport().contact());
    side.node().until("a message on the last connection", [&] {
      const auto found = side.node().accepted.find(0);
      return found != side.node().accepted.end() && !found->second->messages.empty();
    });
    side.post('d');
  };
  run_pair(options(), near, far);
}

TEST_P(Connecting, RepeatedConnectionsLeakNoDescriptors) {
  const int count = rounds(60, 1000);
  const auto near = [&](Side& side) {
    size_t descriptors = 0;
    for (int i = 0; i < count; ++i) {
      Rail& rail = side.connect();
      expect_usable(side, rail);
      side.node().connected.clear();
      side.meet();
      if (i == 2) descriptors = open_descriptors();
    }
    if (processes()) {
      EXPECT_EQ(open_descriptors(), descriptors);
    }
  };
  const auto far = [&](Side& side) {
    size_t descriptors = 0;
    for (int i = 0; i < count; ++i) {
      Rail& rail = side.connect();
      expect_usable(side, rail);
      side.node().until("on_failed", [&] { return rail.failed > 0; });
      side.node().accepted.clear();
      side.meet();
      if (i == 2) descriptors = open_descriptors();
    }
    if (processes()) {
      EXPECT_EQ(open_descriptors(), descriptors);
    }
  };
  run_pair(options(), near, far);
}

TEST_P(Connecting, ConnectionRefusedByThePeerFails) {
  const auto near = [&](Side& side) {
    const Status outcome = connect_once(side.node(), side.take_bytes());
    if (outcome.ok()) {
      Rail& rail = *side.node().connected.at(1);
      side.node().until("on_failed", [&] { return rail.failed > 0; });
    }
    side.post('d');
  };
  const auto far = [&](Side& side) {
    side.node().refuse = true;
    side.post_bytes(side.node().transport().contact());
    (void)side.take<char>(kConnectLimit);
    EXPECT_EQ(side.node().accepts, 1);
  };
  run_pair(options(), near, far);
}

// One node has many peers, all run by the far side.
TEST_P(Connecting, ManyConnectionsCoexist) {
  const int peers = GetParam().slow() ? 20 : rounds(60, 200);
  const PairOptions pair = options();
  const Node::Options base{*factory_, pair.settings, pair.credentials, 0, peers + 1};
  const auto near = [&](Side& side) {
    Node node(base);
    for (int i = 1; i <= peers; ++i) node.connect(i, side.take_bytes());
    node.until("all connections", [&] { return node.connect_outcomes == peers; });
    for (int i = 1; i <= peers; ++i) {
      ASSERT_TRUE(node.connected.contains(i)) << node.connect_failed[i].text();
    }
    for (uint64_t k = 0; k < 10; ++k) {
      for (int i = 1; i <= peers; ++i) {
        send_pattern(*node.connected.at(i), k, 40, k + static_cast<uint64_t>(i));
      }
    }
    node.until("all echoes", [&] {
      for (const auto& [peer, rail] : node.connected) {
        if (rail->messages.size() < 10) return false;
      }
      return true;
    });
    for (const auto& [peer, rail] : node.connected) {
      for (uint64_t k = 0; k < 10; ++k) {
        const MessageInfo info = decode(rail->messages[k].header);
        EXPECT_EQ(info.sequence, k);
        EXPECT_EQ(info.seed, k + static_cast<uint64_t>(peer));
        expect_whole(rail->messages[k].header, rail->messages[k].payload);
      }
    }
    side.post('d');
  };
  const auto far = [&](Side& side) {
    std::list<Node> nodes;
    for (int i = 1; i <= peers; ++i) {
      Node::Options mine = base;
      mine.rank = i;
      nodes.emplace_back(mine);
      side.post_bytes(nodes.back().transport().contact());
    }
    std::vector<std::byte> note;
    const uint64_t deadline = now_ns() + 3 * kPatience;
    while (!side.try_take(note)) {
      if (now_ns() > deadline) throw Abandoned("waited too long for the near side");
      int done = 0;
      for (Node& node : nodes) {
        done += node.step();
        for (auto& [peer, rail] : node.accepted) {
          while (!rail->messages.empty()) {
            const MessageInfo info = decode(rail->messages.front().header);
            send_pattern(*rail, info.sequence, info.size, info.seed);
            rail->messages.pop_front();
          }
        }
      }
      if (done == 0) usleep(100);
    }
  };
  run_pair(pair, near, far);
}

// Leaves room for only |spare| more descriptors during its lifetime.
class FewDescriptors {
 public:
  explicit FewDescriptors(unsigned spare) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int next = dup(0);
    // All numbers below the lowest free one are in use. Higher ones may be in use, too.
    rlimit low = before_;
    low.rlim_cur = static_cast<rlim_t>(next) + spare;
    close(next);
    setrlimit(RLIMIT_NOFILE, &low);
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

// Connects, with retries for a while: after a device could not be opened, both ends wait a moment
// before they try it again.
Status connect_soon(Node& node, ConstByteSpan descriptor) {
  const uint64_t end = now_ns() + 2'000'000'000;
  for (;;) {
    const Status outcome = connect_once(node, descriptor);
    if (outcome.ok() || now_ns() > end) return outcome;
    node.connected.clear();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

TEST_P(ConnectingProcesses, ConnectSucceedsOnceDescriptorsAreAvailableAgain) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer itself needs descriptors";
  const auto near = [&](Side& side) {
    const std::vector<std::byte> descriptor = side.take_bytes();
    for (unsigned spare = 0; spare < 10; ++spare) {
      const FewDescriptors few(spare);
      const Status outcome = connect_once(side.node(), descriptor);
      if (!outcome.ok()) {
        EXPECT_FALSE(outcome.text().empty());
      }
      side.node().connected.clear();
    }
    const Status outcome = connect_soon(side.node(), descriptor);
    ASSERT_TRUE(outcome.ok()) << outcome.text();
    send_empty(*side.node().connected.at(1));
    (void)side.take<char>(kConnectLimit);
  };
  const auto far = [&](Side& side) {
    side.post_bytes(side.node().transport().contact());
    side.node().until(
        "a message on the last connection",
        [&] {
          const auto found = side.node().accepted.find(0);
          return found != side.node().accepted.end() && !found->second->messages.empty();
        },
        10 * kConnectLimit);
    side.post('d');
  };
  run_pair(options(), near, far);
}

TEST_P(ConnectingProcesses, ConnectToAPeerOutOfDescriptorsDoesNotHang) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer itself needs descriptors";
  PairOptions impatient = options();
  impatient.settings += ";TIMEOUT=2s;BOOTSTRAP_TIMEOUT=2s";
  const auto near = [&](Side& side) {
    const std::vector<std::byte> descriptor = side.take_bytes();
    for (unsigned spare = 0; spare < 4; ++spare) {
      (void)side.take<char>(kConnectLimit);
      const Status outcome = connect_once(side.node(), descriptor);
      if (!outcome.ok()) {
        EXPECT_FALSE(outcome.text().empty());
      }
      side.node().connected.clear();
      side.post('n');
    }
    (void)side.take<char>(kConnectLimit);
    const Status outcome = connect_soon(side.node(), descriptor);
    EXPECT_TRUE(outcome.ok()) << outcome.text();
    if (outcome.ok()) send_empty(*side.node().connected.at(1));
    (void)side.take<char>(kConnectLimit);
  };
  const auto far = [&](Side& side) {
    side.post_bytes(side.node().transport().contact());
    for (unsigned spare = 0; spare < 4; ++spare) {
      const FewDescriptors few(spare);
      side.post('g');
      (void)side.take<char>(kConnectLimit);
      side.node().accepted.clear();
    }
    side.post('g');
    side.node().until("a message on the last connection", [&] {
      const auto found = side.node().accepted.find(0);
      return found != side.node().accepted.end() && !found->second->messages.empty();
    });
    side.post('d');
  };
  run_pair(impatient, near, far);
}

INSTANTIATE_OVER(Connecting, transport_cases);
INSTANTIATE_OVER(ConnectingProcesses, plain_process_cases);

}  // namespace
}  // namespace hetcomm::test
