#include "src/system/config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <numeric>
#include <utility>

#include "src/system/clock.h"

namespace hetcomm {
namespace {

using enum VariableType;
using enum Naming;

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kKi = 1 << 10;
constexpr uint64_t kMi = 1 << 20;
constexpr uint64_t kGi = 1 << 30;

constexpr Limits between(uint64_t least, uint64_t most) { return {least, most, Zero::kNumber}; }
constexpr Limits at_least(uint64_t least) { return between(least, UINT64_MAX); }
constexpr Limits at_most(uint64_t most) { return between(0, most); }
constexpr Limits zero_or(uint64_t least, uint64_t most) { return {least, most, Zero::kAllowed}; }
constexpr Limits zero_is_default() { return {0, UINT64_MAX, Zero::kDefault}; }

constexpr VariableInfo kTable[] = {
    {Variable::kLog, kChoice, kNoFile, "HETCOMM_LOG", "warn", "error|warn|info|debug|trace",
     "How much is logged; info says which interface and transports were chosen and why."},
    {Variable::kLogFile, kText, kFile, "HETCOMM_LOG_FILE", "", nullptr,
     "File that log lines are appended to instead of being printed. %h in its name stands for the "
     "host, %p for the process id and %r for the rank, such as 'job-%h-%r.log'."},
    {Variable::kProgress, kChoice, kNoFile, "HETCOMM_PROGRESS", "caller", "caller|thread",
     "Who drives communication: only callers that wait or test, or a background thread as well."},
    {Variable::kProgressCpus, kText, kNoFile, "HETCOMM_PROGRESS_CPUS", "auto", nullptr,
     "Processors of the library's own threads, such as '0-3,8'; auto means those near the rank's "
     "NICs, and none wherever the process may run. They never leave the processors that the "
     "process "
     "was given."},
    {Variable::kTransports, kText, kNoFile, "HETCOMM_TRANSPORTS", "", nullptr,
     "Transports that may be used, such as 'shm,tcp', or with ^ those that may not, such as "
     "'^shm'; empty means all usable ones."},
    {Variable::kInterface, kText, kNoFile, "HETCOMM_INTERFACE", "", nullptr,
     "Network interfaces to use: names, name prefixes with '*', or subnets "
     "('eth0,ib*,10.0.0.0/8'); "
     "empty means the first that is up, loopback last and bridges of containers not at all."},
    {Variable::kNic, kText, kNoFile, "HETCOMM_NIC", "", nullptr,
     "NICs to use, best first, by interface, RDMA device, 'device:port' or PCI address: "
     "'mlx5_0,eth*', or with ^ those not to use. HETCOMM_RDMA_NIC and HETCOMM_INTERFACE follow "
     "from "
     "it where they are unset. 'acc2=mlx5_2' or 'numa0=eth0', after a '|', is a list for one "
     "accelerator or NUMA node, as `hetcomm_info topology` shows."},
    {Variable::kFabric, kText, kNoFile, "HETCOMM_FABRIC", "", nullptr,
     "Fabrics of NICs, such as 'mlx5_0=rail0,mlx5_1=rail1', where addresses do not tell: NICs of "
     "one fabric reach each other, those of two do not. NICs are named as in HETCOMM_NIC."},
    {Variable::kTopology, kText, kFile, "HETCOMM_TOPOLOGY", "", nullptr,
     "File that describes this host: hwloc's (NAME.xml) or what `hetcomm_info topology --format "
     "json` printed. It counts if it fits the host; empty means the host itself."},
    {Variable::kTopologyTrust, kChoice, kNoFile, "HETCOMM_TOPOLOGY_TRUST", "off", "off|on",
     "Whether the file of HETCOMM_TOPOLOGY counts even if it does not fit the host."},
    {Variable::kStorePort, kInteger, kNoFile, "HETCOMM_STORE_PORT", "0", nullptr,
     "Port of rank 0's bootstrap store; 0 means MASTER_PORT or one of the 16 after it.",
     at_most(65535)},
    {Variable::kPorts, kText, kNoFile, "HETCOMM_PORTS", "", nullptr,
     "Ports that ranks listen on, such as '20000-20999', the store's apart; empty means any."},
    {Variable::kJob, kText, kNoFile, "HETCOMM_JOB", "", nullptr,
     "Name of the job, alike on all ranks, by which two jobs on one port are told apart; empty "
     "means TORCHELASTIC_RUN_ID or what the launcher calls the job."},
    {Variable::kSecret, kSecretText, kNoFile, "HETCOMM_SECRET", "", nullptr,
     "Job secret that every connection has to prove."},
    {Variable::kSecretFile, kText, kTrust, "HETCOMM_SECRET_FILE", "", nullptr,
     "File that holds the job secret; read when HETCOMM_SECRET is unset."},
    {Variable::kRequireSecret, kChoice, kNoFile, "HETCOMM_REQUIRE_SECRET", "off", "off|on",
     "Refuses a job of several ranks that has no configured secret."},
    {Variable::kTls, kChoice, kNoFile, "HETCOMM_TLS", "off", "off|on",
     "Whether connections over the network (tcp, control plane, store) are made by TLS 1.3."},
    {Variable::kTlsCertificate, kText, kTrust, "HETCOMM_TLS_CERTIFICATE", "", nullptr,
     "PEM file with this process's certificate, and those between it and the authority."},
    {Variable::kTlsKey, kText, kTrust, "HETCOMM_TLS_KEY", "", nullptr,
     "PEM file with the certificate's private key, without a pass phrase."},
    {Variable::kTlsCa, kText, kTrust, "HETCOMM_TLS_CA", "", nullptr,
     "PEM file with the authorities whose certificates are accepted; no others are."},
    {Variable::kTlsServerName, kText, kTrust, "HETCOMM_TLS_SERVER_NAME", "", nullptr,
     "Name (or IP address) that the certificate of every peer has to carry; empty means any."},
    {Variable::kRequireTls, kChoice, kNoFile, "HETCOMM_REQUIRE_TLS", "off", "off|on",
     "Refuses whatever would send over the network without protection: needs HETCOMM_TLS=on, and "
     "leaves out transports that cannot be protected."},
    {Variable::kBootstrapTimeout, kDuration, kNoFile, "HETCOMM_BOOTSTRAP_TIMEOUT", "300s", nullptr,
     "How long ranks wait for each other when a communicator is created; 0 means the default.",
     zero_is_default()},
    {Variable::kTimeout, kDuration, kNoFile, "HETCOMM_TIMEOUT", "30min", nullptr,
     "Deadline of an operation that sets none; 0 means the default.", zero_is_default()},
    {Variable::kDetectionTime, kDuration, kNoFile, "HETCOMM_DETECTION_TIME", "10s", nullptr,
     "Within this time a peer that the network has cut off is declared lost, and a connection that "
     "was cut is replaced.",
     at_least(10 * kMs)},
    {Variable::kSmallJob, kInteger, kNoFile, "HETCOMM_SMALL_JOB", "128", nullptr,
     "Up to this many ranks each tells all others everything of itself when a communicator is "
     "created; beyond it they ask each other at first contact. Alike on all ranks.",
     at_most(1 << 20)},
    {Variable::kRaiseLimits, kChoice, kNoFile, "HETCOMM_RAISE_LIMITS", "on", "off|on",
     "Whether the soft limit of open files (RLIMIT_NOFILE) is raised, to what a job needs and 256 "
     "more, where it is too low for the job."},
    {Variable::kStallTime, kDuration, kNoFile, "HETCOMM_STALL_TIME", "60s", nullptr,
     "An operation that waits longer is reported once, with all pending ones.", at_least(kMs)},
    {Variable::kSpinTime, kDuration, kNoFile, "HETCOMM_SPIN_TIME", "1ms", nullptr,
     "How long a waiting thread polls before it sleeps; unset, 200us when this host has more ranks "
     "than cores, and 100us beside processes that burn the core."},
    {Variable::kYield, kChoice, kNoFile, "HETCOMM_YIELD", "auto", "auto|off|on",
     "Whether a polling thread yields its core; auto: when this host has more ranks than cores."},
    {Variable::kDevices, kText, kNoFile, "HETCOMM_DEVICES", "", nullptr,
     "Devices beside the host, with their settings, such as 'sim-handle:bandwidth=10G:latency=2us' "
     "or "
     "several, with commas between them. {local_rank} stands for the number of this process among "
     "the launcher's on its host. Kinds: opencl, sim-handle, sim-address, and those of "
     "HETCOMM_DEVICE_PLUGINS."},
    {Variable::kDevicePlugins, kText, kFile, "HETCOMM_DEVICE_PLUGINS", "", nullptr,
     "Shared libraries that bring further kinds of devices for HETCOMM_DEVICES, with commas "
     "between "
     "their paths (hetcomm/device_plugin.h)."},
    {Variable::kDevicePath, kChoice, kNoFile, "HETCOMM_DEVICE_PATH", "auto", "auto|direct|staged",
     "How device memory goes over a network: by the interface itself where a write that was read "
     "back has shown that it can, else staged through the host; or only so."},
    {Variable::kDeviceSums, kChoice, kNoFile, "HETCOMM_DEVICE_SUMS", "auto", "auto|off|on",
     "Whether devices that can reduce make the sums of collective operations between hosts; auto: "
     "where that was quicker lately, the way to the device and back included."},
    {Variable::kDeviceTimeout, kDuration, kNoFile, "HETCOMM_DEVICE_TIMEOUT", "60s", nullptr,
     "A device no copy of which has ended for so long, while some are under way, is reported; inf: "
     "none is.",
     at_least(kMs)},
    {Variable::kDeviceTimeoutAbandon, kChoice, kNoFile, "HETCOMM_DEVICE_TIMEOUT_ABANDON", "off",
     "off|on",
     "Whether such a device is given up, as by hetcomm_device_abandon: its operations end, and "
     "their "
     "memory on it must not be used again."},
    {Variable::kRails, kInteger, kNoFile, "HETCOMM_RAILS", "4", nullptr,
     "Connections of one kind, over a network interface each, that a pair may share its bulk data "
     "among: that of the host, and that of each device.",
     between(1, 64)},
    {Variable::kCoolDown, kDuration, kNoFile, "HETCOMM_COOL_DOWN", "1s", nullptr,
     "How long a transport whose connection failed is left alone; doubles with each failure.",
     between(kMs, 86'400'000 * kMs)},
    {Variable::kCollectiveCheck, kInteger, kNoFile, "HETCOMM_COLLECTIVE_CHECK", "1", nullptr,
     "Whether ranks compare arguments of collective operations; 0 or 1, as on all.", between(0, 1)},
    {Variable::kCollectiveShared, kInteger, kNoFile, "HETCOMM_COLLECTIVE_SHARED", "1", nullptr,
     "Whether collective operations go through shared memory among ranks of one host; 0 or 1.",
     between(0, 1)},
    {Variable::kLinkModel, kText, kFile, "HETCOMM_LINK_MODEL", "", nullptr,
     "On rank 0, a file of `hetcomm_bench links --format json`: what the links between hosts "
     "carry, for the choice of algorithms. Or one of `hetcomm_bench latency,bandwidth --format "
     "json`: what messages cost by transport; that of the first rank that has a transport counts "
     "for all. Without the former, links are estimated from the hosts' network interfaces."},
    {Variable::kCluster, kText, kNoFile, "HETCOMM_CLUSTER", "", nullptr,
     "Name of the cluster that this rank belongs to, up to 63 characters: collective operations "
     "send little between ranks of different ones. Unset on all: hosts are told apart."},
    {Variable::kHostLabel, kText, kNoFile, "HETCOMM_HOST_LABEL", "", nullptr,
     "Name of this host in a link model, up to 127 characters. Unset: the host's own name."},
    {Variable::kCreditBytes, kSize, kNoFile, "HETCOMM_CREDIT_BYTES", "1M", nullptr,
     "Bytes that one peer may have under way to this process before they are matched.",
     between(4 * kKi, kGi)},
    {Variable::kUnexpectedBytes, kSize, kNoFile, "HETCOMM_UNEXPECTED_BYTES", "256M", nullptr,
     "The same for all peers together; divided among them.", at_least(4 * kKi)},
    {Variable::kStagingChunk, kSize, kNoFile, "HETCOMM_STAGING_CHUNK", "0", nullptr,
     "Chunk in which device memory that a transport cannot reach is staged through the host; 0 "
     "chooses it by the size of the message and the rates that were measured.",
     zero_or(4 * kKi, kGi)},
    {Variable::kStagingDepth, kInteger, kNoFile, "HETCOMM_STAGING_DEPTH", "0", nullptr,
     "Chunks of one message that are staged at a time; 0 chooses it by their size.", at_most(16)},
    {Variable::kStagingPin, kChoice, kNoFile, "HETCOMM_STAGING_PIN", "on", "off|on",
     "Whether chunks lie in memory that devices have pinned. Copies are slower without."},
    {Variable::kShmRingBytes, kSize, kNoFile, "HETCOMM_SHM_RING_BYTES", "256K", nullptr,
     "Bytes of the shared ring that bulk data of one direction of a pair flows through; the "
     "smaller "
     "of both sides' counts.",
     between(64 * kKi, kGi)},
    {Variable::kShmChunk, kSize, kNoFile, "HETCOMM_SHM_CHUNK", "32K", nullptr,
     "Piece in which bulk data is copied through the shared ring.", between(4 * kKi, kMi)},
    {Variable::kShmBulk, kChoice, kNoFile, "HETCOMM_SHM_BULK", "auto", "auto|copy|read",
     "How bulk data, and eager messages from 16 KiB on, cross shared memory: copied through the "
     "ring, read by the receiver from the sender's memory where it calls the library often enough, "
     "or whichever was measured to be faster."},
    {Variable::kShmEager, kSize, kNoFile, "HETCOMM_SHM_EAGER", "128K", nullptr,
     "Messages up to this size are sent over shm without waiting for their receive."},
    {Variable::kShmUsers, kChoice, kTrust, "HETCOMM_SHM_USERS", "same", "same|any",
     "Whose processes shm connects to: those of the same effective user, or of any who have proved "
     "the job secret."},
    {Variable::kShmMap, kChoice, kNoFile, "HETCOMM_SHM_MAP", "on", "off|on",
     "Whether ranks of one host map registered memory that grants them every access; off: each "
     "access goes through the owner, which checks it."},
    {Variable::kTcpEager, kSize, kNoFile, "HETCOMM_TCP_EAGER", "16K", nullptr,
     "Messages up to this size are sent over tcp without waiting for their receive."},
    {Variable::kTcpChunk, kSize, kNoFile, "HETCOMM_TCP_CHUNK", "1M", nullptr,
     "Piece in which bulk data is framed on a tcp stream.", between(512, 64 * kMi)},
    {Variable::kTcpStreams, kInteger, kNoFile, "HETCOMM_TCP_STREAMS", "0", nullptr,
     "Bulk streams of a tcp pair; 0 means one, and more where one does not fill the link.",
     at_most(8)},
    {Variable::kTcpSocketBuffer, kSize, kNoFile, "HETCOMM_TCP_SOCKET_BUFFER", "0", nullptr,
     "Socket buffer size of bulk streams; 0 leaves it to the kernel.", at_most(kGi)},
    {Variable::kTcpBindFamily, kChoice, kNoFile, "HETCOMM_FAMILY", "any", "any|ipv4|ipv6",
     "Address family of all connections."},
    {Variable::kRdmaNic, kText, kNoFile, "HETCOMM_RDMA_NIC", "", nullptr,
     "RDMA devices to use, best first: 'mlx5_0', 'mlx5_1:1' (with port), 'rxe0,rxe1'; empty means "
     "all active ports, the fastest first. At most HETCOMM_RAILS of them share the load."},
    {Variable::kRdmaConnect, kChoice, kNoFile, "HETCOMM_RDMA_CONNECT", "exchange", "exchange|cm",
     "How RDMA connections find their path: both sides tell each other their addresses, or rdma_cm "
     "(librdmacm) does it. Alike on all ranks."},
    {Variable::kRdmaGidIndex, kText, kNoFile, "HETCOMM_RDMA_GID_INDEX", "auto", nullptr,
     "Index of the port's address (GID); auto prefers RoCE v2 over IPv4, then IPv6, then RoCE v1."},
    {Variable::kRdmaMtu, kChoice, kNoFile, "HETCOMM_RDMA_MTU", "auto",
     "auto|256|512|1024|2048|4096",
     "Path MTU of RDMA connections; auto is the active MTU of the ports."},
    {Variable::kRdmaTrafficClass, kInteger, kNoFile, "HETCOMM_RDMA_TRAFFIC_CLASS", "0", nullptr,
     "Traffic class of RDMA packets.", at_most(255)},
    {Variable::kRdmaTimeout, kDuration, kNoFile, "HETCOMM_RDMA_TIMEOUT", "500ms", nullptr,
     "How long the device waits for an acknowledgement before it sends again; rounded up to 4.096 "
     "us "
     "times a power of two."},
    {Variable::kRdmaRetries, kInteger, kNoFile, "HETCOMM_RDMA_RETRIES", "6", nullptr,
     "How often the device sends again before it gives a connection up. Soft-RoCE never does, and "
     "has "
     "the time of all tries for one.",
     at_most(7)},
    {Variable::kRdmaQueuePairs, kInteger, kNoFile, "HETCOMM_RDMA_QUEUE_PAIRS", "4096", nullptr,
     "Most RDMA connections of a communicator at a time.", between(1, kMi)},
    {Variable::kRdmaEager, kSize, kNoFile, "HETCOMM_RDMA_EAGER", "16K", nullptr,
     "Messages up to this size are sent over rdma without waiting for their receive."},
    {Variable::kRdmaSlice, kSize, kNoFile, "HETCOMM_RDMA_SLICE", "256K", nullptr,
     "Largest single RDMA write or read; four of them may be under way on a connection.",
     between(4 * kKi, 16 * kMi)},
    {Variable::kRdmaCacheBytes, kSize, kNoFile, "HETCOMM_RDMA_CACHE_BYTES", "1G", nullptr,
     "User memory that stays registered for the next operation; 0 keeps none."},
    {Variable::kRdmaStrictKeys, kChoice, kNoFile, "HETCOMM_RDMA_STRICT_KEYS", "off", "off|on",
     "Whether what a peer got a key of is deregistered as soon as the peer needs it no more: costs "
     "a "
     "registration for each use."},
};
static_assert(std::size(kTable) == static_cast<size_t>(Variable::kCount));

struct Unit {
  std::string_view name;
  uint64_t factor;
};

constexpr std::string_view kDurationForms =
    "a duration: a number of seconds, or with h, min, s, ms, us or ns, such as 1.5s or 500ms; or "
    "inf";
constexpr std::string_view kSizeForms =
    "a size: a number of bytes, or with K, M or G, powers of 1024, such as 4096, 64K or 1.5M";

// "<number><unit>" with an optional decimal fraction; |forms| says so to people.
template <size_t N>
Result<uint64_t> parse_with_unit(std::string_view text, const std::array<Unit, N>& units,
                                 std::string_view forms) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  if (error == std::errc() && number >= 0) {
    for (const Unit& candidate : units) {
      if (unit != candidate.name) continue;
      const double value = number * static_cast<double>(candidate.factor);
      if (value < 9e18) return static_cast<uint64_t>(value);
    }
  }
  return Status(Code::kInvalidArgument, fmt::format("'{}' is not {}", text, forms));
}

// |number| as one would write it: in the largest unit that leaves it whole.
std::string written(VariableType type, uint64_t number) {
  static constexpr std::array<Unit, 6> kDurations = {{{"h", 3'600'000'000'000},
                                                      {"min", 60'000'000'000},
                                                      {"s", 1'000'000'000},
                                                      {"ms", kMs},
                                                      {"us", 1'000},
                                                      {"ns", 1}}};
  static constexpr std::array<Unit, 4> kSizes = {{{"G", kGi}, {"M", kMi}, {"K", kKi}, {"", 1}}};
  if (type == kDuration && number == kForever) return "inf";
  const std::span<const Unit> units = type == kDuration ? std::span<const Unit>(kDurations)
                                      : type == kSize   ? std::span<const Unit>(kSizes)
                                                        : std::span(kSizes).last(1);
  for (const Unit& unit : units) {
    if (number >= unit.factor && number % unit.factor == 0) {
      return fmt::format("{}{}", number / unit.factor, unit.name);
    }
  }
  return "0";
}

// "64K to 1G", "0, or 4K and more", "" where there are no limits.
std::string range_of(const VariableInfo& info) {
  const auto& [least, most, zero] = info.limits;
  if (least == 0 && most == UINT64_MAX) return "";
  const std::string first = written(info.type, least);
  return fmt::format("{}{}{}", zero == Zero::kAllowed && least > 0 ? "0, or " : "", first,
                     most == UINT64_MAX ? " and more" : " to " + written(info.type, most));
}

bool is_within(const Limits& limits, uint64_t number) {
  if (number == 0 && limits.zero != Zero::kNumber) return true;
  return number >= limits.least && number <= limits.most;
}

bool is_choice(std::string_view choices, std::string_view text) {
  while (true) {
    const size_t bar = choices.find('|');
    if (choices.substr(0, bar) == text) return true;
    if (bar == std::string_view::npos) return false;
    choices.remove_prefix(bar + 1);
  }
}

// The choice that |text| means, in any case; "1", "yes" and "true" mean "on", and so for "off". ""
// when it means none.
std::string find_choice(std::string_view choices, std::string_view text) {
  std::string word(text);
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (is_choice(choices, word)) return word;
  static constexpr std::pair<std::string_view, std::string_view> kSynonyms[] = {
      {"1", "on"}, {"yes", "on"}, {"true", "on"}, {"0", "off"}, {"no", "off"}, {"false", "off"},
  };
  for (const auto& [synonym, choice] : kSynonyms) {
    if (word == synonym && is_choice(choices, choice)) return std::string(choice);
  }
  return {};
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replace, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

const VariableInfo* find_variable(std::string_view name) {
  for (const VariableInfo& info : kTable) {
    if (name == info.name) return &info;
  }
  return nullptr;
}

// Returns whether |name| may be a variable's name. Other text may be a piece of a secret, and is
// not printed.
bool is_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

// Names that belong to other parts of the project or to launch scripts and are not warned about.
bool is_foreign(std::string_view name) { return name.starts_with("HETCOMM_TEST_"); }

}  // namespace

std::span<const VariableInfo> variable_table() { return kTable; }

std::string allowed_values(const VariableInfo& info) {
  std::string_view forms;
  switch (info.type) {
    case kChoice:
      return info.choices;
    case kDuration:
      forms = "a duration, such as 500ms, 10s, 2min or inf";
      break;
    case kSize:
      forms = "a size in bytes, such as 4096, 64K or 1M";
      break;
    case kInteger:
      forms = "a number";
      break;
    case kText:
    case kSecretText:
      return "";
  }
  const std::string range = range_of(info);
  return range.empty() ? std::string(forms) : fmt::format("{} ({})", range, forms);
}

Result<uint64_t> parse_duration(std::string_view text) {
  if (text == "inf") return kForever;
  static constexpr std::array<Unit, 7> kUnits = {{{"", 1'000'000'000},
                                                  {"s", 1'000'000'000},
                                                  {"ms", 1'000'000},
                                                  {"us", 1'000},
                                                  {"ns", 1},
                                                  {"min", 60'000'000'000},
                                                  {"h", 3'600'000'000'000}}};
  return parse_with_unit(text, kUnits, kDurationForms);
}

Result<uint64_t> parse_size(std::string_view text) {
  static constexpr std::array<Unit, 11> kUnits = {{{"", 1},
                                                   {"B", 1},
                                                   {"K", 1u << 10},
                                                   {"KiB", 1u << 10},
                                                   {"k", 1u << 10},
                                                   {"M", 1u << 20},
                                                   {"MiB", 1u << 20},
                                                   {"m", 1u << 20},
                                                   {"G", 1u << 30},
                                                   {"GiB", 1u << 30},
                                                   {"g", 1u << 30}}};
  return parse_with_unit(text, kUnits, kSizeForms);
}

std::string_view nearest_variable(std::string_view name) {
  // All have the prefix in common: it says nothing about how near they are.
  constexpr std::string_view kPrefix = "HETCOMM_";
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  std::string_view best;
  size_t best_distance = std::clamp<size_t>(name.size() / 3, 2, 3) + 1;
  for (const VariableInfo& info : kTable) {
    const size_t distance = edit_distance(name, std::string_view(info.name).substr(kPrefix.size()));
    if (distance < best_distance) {
      best_distance = distance;
      best = info.name;
    }
  }
  return best;
}

Status Config::derive(Variable variable, std::string_view text) {
  if (is_set(variable)) return {};
  return assign(kTable[static_cast<size_t>(variable)], text, /*set=*/true);
}

Status Config::assign(const VariableInfo& info, std::string_view text, bool set) {
  Value& value = values_[static_cast<size_t>(info.variable)];
  std::string choice;
  Result<uint64_t> number(uint64_t{0});
  switch (info.type) {
    case kDuration:
      number = parse_duration(text);
      break;
    case kSize:
      number = parse_size(text);
      break;
    case kInteger: {
      uint64_t parsed = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
      if (error != std::errc() || end != text.data() + text.size()) {
        number = Status(Code::kInvalidArgument, fmt::format("'{}' is not a number", text));
      } else {
        number = parsed;
      }
      break;
    }
    case kChoice:
      choice = find_choice(info.choices, text);
      if (choice.empty()) {
        number = Status(Code::kInvalidArgument,
                        fmt::format("'{}' is not one of {}", text, info.choices));
      }
      text = choice;
      break;
    case kText:
    case kSecretText:
      break;
  }
  if (!number.ok()) return number.status().annotate(info.name);
  const bool is_number = info.type == kDuration || info.type == kSize || info.type == kInteger;
  if (is_number && number.value() == 0 && info.limits.zero == Zero::kDefault) {
    return assign(info, info.default_value, set);
  }
  if (is_number && !is_within(info.limits, number.value())) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{}: {} is out of range: {}", info.name, text, allowed_values(info)));
  }
  value.text = text;
  value.shown = info.type == kSecretText && !text.empty() ? "(set)" : text;
  value.number = number.value();
  value.set = set;
  return {};
}

Result<Config> Config::load(const char* const* environment, std::string_view settings, Log& log,
                            Caller caller) {
  Config config;
  config.values_.resize(static_cast<size_t>(Variable::kCount));
  for (const VariableInfo& info : kTable) {
    HETCOMM_RETURN_IF_ERROR(config.assign(info, info.default_value, false));
  }
  std::vector<const VariableInfo*> ignored;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    if (!entry.starts_with("HETCOMM_")) continue;
    const size_t equals = entry.find('=');
    const std::string_view name = entry.substr(0, equals);
    if (const VariableInfo* info = find_variable(name); info != nullptr) {
      const std::string_view text =
          equals == std::string_view::npos ? std::string_view() : entry.substr(equals + 1);
      // An empty variable is an unset one, as launch scripts leave them.
      if (text.empty()) continue;
      if (caller == Caller::kStranger && info->names != kNoFile) {
        ignored.push_back(info);
        continue;
      }
      HETCOMM_RETURN_IF_ERROR(config.assign(*info, text, true));
    } else if (!is_foreign(name) && is_name(name)) {
      const std::string_view nearest = nearest_variable(name);
      log.warn("unknown variable {}{}{}{}", name, nearest.empty() ? "" : "; did you mean ", nearest,
               nearest.empty() ? "" : "?");
    }
  }
  bool after_secret = false;  // a ';' in a secret ends it, and the rest of it looks like an entry
  for (int number = 1; !settings.empty(); ++number) {
    const size_t end = settings.find(';');
    const std::string_view entry = settings.substr(0, end);
    settings.remove_prefix(end == std::string_view::npos ? settings.size() : end + 1);
    if (entry.empty()) continue;
    const size_t equals = entry.find('=');
    std::string name(entry.substr(0, equals));
    if (!name.starts_with("HETCOMM_")) name = "HETCOMM_" + name;
    const VariableInfo* info = find_variable(name);
    const bool has_value = equals != std::string_view::npos;
    if (info == nullptr || !has_value) {
      const bool shown = info != nullptr || (has_value && !after_secret && is_name(name));
      const std::string_view near = shown && info == nullptr ? nearest_variable(name) : "";
      return Status(
          Code::kInvalidArgument,
          fmt::format(
              "settings: entry {}{}{}{} {}{}{}{}", number, shown ? " ('" : "", shown ? name : "",
              shown ? "')" : "",
              info != nullptr ? "has no value; write NAME=value" : "is not a known variable",
              near.empty() ? "" : "; did you mean ", near, near.empty() ? "" : "?"));
    }
    // Whatever the environment says of the secret, the settings say it anew.
    if (info->variable == Variable::kSecretFile && equals + 1 < entry.size() && !after_secret) {
      const VariableInfo& secret = kTable[static_cast<size_t>(Variable::kSecret)];
      HETCOMM_RETURN_IF_ERROR(config.assign(secret, "", false));
    }
    HETCOMM_RETURN_IF_ERROR(config.assign(*info, entry.substr(equals + 1), true));
    after_secret = after_secret || info->type == kSecretText;
  }
  HETCOMM_RETURN_IF_ERROR(config.check_ignored(ignored, log));
  return config;
}

Status Config::check_ignored(std::vector<const VariableInfo*> ignored, Log& log) const {
  std::erase_if(ignored, [this](const VariableInfo* info) { return is_set(info->variable); });
  if (ignored.empty()) return {};
  std::string all;
  std::string trust;
  const auto list = [](std::string& names, const char* name) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  };
  for (const VariableInfo* info : ignored) {
    list(all, info->name);
    if (info->names == kTrust) list(trust, info->name);
  }
  log.warn(
      "this program has rights that whoever started it lacks (setuid, setgid or capabilities), so "
      "variables that name files and libraries or decide about trust are ignored: {}; the program "
      "itself can set them by "
      "hetcomm_context_options_t::settings",
      all);
  if (trust.empty()) return {};
  return Status(Code::kPermissionDenied,
                fmt::format("{}: ignored, because this program has rights that whoever started it "
                            "lacks, and nobody is trusted by a guess: set them by "
                            "hetcomm_context_options_t::settings, or unset them",
                            trust));
}

}  // namespace hetcomm
