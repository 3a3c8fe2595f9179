#include "src/core/job/membership/job_digest.h"

#include <sys/socket.h>

#include <algorithm>
#include <map>
#include <span>

#include <fmt/core.h>

#include "src/base/bytes.h"
#include "src/base/packed.h"
#include "topology/machine/host_links.h"

namespace hetcomm {
namespace {

using Bytes = std::vector<std::byte>;

constexpr uint16_t kDigestVersion = 4;
constexpr size_t kMaxAddressBytes = 32;
constexpr size_t kMaxKinds = 64;
// The most bytes about the links of hosts, in a part and in the digest of a job. This is usually
// enough, because most hosts have the same links.
constexpr size_t kMaxLinksOfPart = 16 * 1024;
constexpr size_t kMaxLinksOfJob = 6 * 1024;

// A table that holds every value once, in the order of insertion.
template <typename Value>
class Table {
 public:
  uint32_t index_of(const Value& value) {
    // Usually a rank has the same value as the preceding rank.
    if (last_ < values_.size() && values_[last_] == value) return last_;
    const auto [found, added] = index_.try_emplace(value, static_cast<uint32_t>(values_.size()));
    if (added) values_.push_back(value);
    return last_ = found->second;
  }
  std::vector<Value> take() { return std::move(values_); }
  size_t size() const { return values_.size(); }

 private:
  std::map<Value, uint32_t> index_;
  std::vector<Value> values_;
  uint32_t last_ = 0;  // index of the last value found or added
};

std::string text_of(ConstByteSpan bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::string encode_address(const Address& address) {
  ByteWriter writer;
  address.with_port(0).encode(writer);
  return text_of(writer.bytes());
}

// Builds a digest, one rank at a time.
class Gathering {
 public:
  explicit Gathering(int first) : first_(first) {}

  struct Rank {
    const RankClass& its_class;
    const HostId& host;
    const std::string& label;
    const std::string& cluster;
    const std::string& address;
    const std::string& links;
    uint16_t port;
    uint32_t incarnation;
    uint32_t known_devices;
  };
  Status add(const Rank& rank) {
    const int number = first_ + static_cast<int>(digest_.size());
    if (digest_.size() == 0) tls_ = rank.its_class.tls;
    if (rank.its_class.tls != tls_) {
      return Status(Code::kBootstrapFailed,
                    fmt::format("rank {} has HETCOMM_TLS={}, rank {} has HETCOMM_TLS={}: set it "
                                "alike on all ranks",
                                first_, tls_ ? "on" : "off", number, tls_ ? "off" : "on"));
    }
    digest_.class_of.push_back(classes_.index_of(rank.its_class));
    if (classes_.size() > JobDigest::kMaxClasses) {
      return Status(
          Code::kBootstrapFailed,
          fmt::format("ranks {} to {} differ in HETCOMM_TRANSPORTS, HETCOMM_CREDIT_BYTES or their "
                      "number of devices in more than {} ways: set them alike on most ranks",
                      first_, number, JobDigest::kMaxClasses));
    }
    const uint32_t host = hosts_.index_of(rank.host);
    digest_.host_of.push_back(host);
    std::vector<uint32_t>& known = digest_.known_devices;
    if (host == known.size()) known.push_back(rank.known_devices);
    if (known[host] != rank.known_devices) digest_.must_tell_devices = true;
    digest_.label_of.push_back(labels_.index_of(rank.label));
    digest_.cluster_of.push_back(clusters_.index_of(rank.cluster));
    digest_.address_of.push_back(addresses_.index_of(rank.address));
    digest_.links_of.push_back(links_.index_of(rank.links));
    digest_.ports.push_back(rank.port);
    digest_.incarnations.push_back(rank.incarnation);
    return {};
  }
  void add_cost(const std::string& kind, const LinkCost& cost) {
    const auto same = [&](const auto& each) { return each.first == kind; };
    if (std::none_of(digest_.costs.begin(), digest_.costs.end(), same)) {
      digest_.costs.emplace_back(kind, cost);
    }
  }
  void tell_devices() { digest_.must_tell_devices = true; }
  void add_silenced(uint32_t ranks) { digest_.silenced += ranks; }
  void set_instance(const std::array<std::byte, 16>& instance, uint32_t link_model_bytes) {
    digest_.instance = instance;
    digest_.link_model_bytes = link_model_bytes;
  }
  JobDigest take() {
    digest_.classes = classes_.take();
    digest_.host_count = static_cast<uint32_t>(hosts_.size());
    digest_.host_ids = hosts_.take();
    digest_.labels = labels_.take();
    digest_.clusters = clusters_.take();
    digest_.links = links_.take();
    for (const std::string& encoded : addresses_.take()) {
      ByteReader reader(std::as_bytes(std::span(encoded)));
      Result<Address> address = Address::decode(reader);
      digest_.addresses.push_back(address.ok() ? address.value() : Address());
    }
    return std::move(digest_);
  }

 private:
  const int first_;
  bool tls_ = false;
  Table<RankClass> classes_;
  Table<HostId> hosts_;
  Table<std::string> labels_;
  Table<std::string> clusters_;
  Table<std::string> addresses_;
  Table<std::string> links_;
  JobDigest digest_;
};

// Writes |column|, which has a value per rank: one value per host if all ranks of each host have
// the same value, as is usual.
void write_by_host(ByteWriter& writer, const JobDigest& digest,
                   const std::vector<uint32_t>& column) {
  std::vector<uint32_t> of_host(digest.host_count, UINT32_MAX);
  bool is_alike = true;
  for (size_t rank = 0; rank < column.size(); ++rank) {
    uint32_t& value = of_host[digest.host_of[rank]];
    if (value == UINT32_MAX) value = column[rank];
    is_alike = is_alike && value == column[rank];
  }
  writer.write(static_cast<uint8_t>(is_alike ? 1 : 0));
  write_column(writer, is_alike ? of_host : column);
}

std::vector<uint32_t> read_by_host(ByteReader& reader, const JobDigest& digest, size_t end) {
  const bool is_alike = reader.read<uint8_t>() != 0;
  const size_t count = is_alike ? digest.host_count : digest.host_of.size();
  std::vector<uint32_t> read = read_column(reader, count, static_cast<uint32_t>(end));
  if (!is_alike || reader.failed()) return read;
  std::vector<uint32_t> column;
  for (const uint32_t host : digest.host_of) column.push_back(read[host]);
  return column;
}

void write_ports(ByteWriter& writer, const std::vector<uint16_t>& ports) {
  for (const uint16_t port : ports) writer.write(port);
}

void write_class(ByteWriter& writer, const RankClass& each) {
  writer.write(static_cast<uint8_t>(each.tls ? 1 : 0));
  writer.write(each.credit);
  write_packed(writer, each.device_count);
  write_packed(writer, each.kinds.size());
  for (const RankClass::Kind& kind : each.kinds) {
    writer.write_string(kind.name);
    writer.write(static_cast<uint8_t>(kind.within_host ? 1 : 0));
  }
}

RankClass read_class(ByteReader& reader) {
  RankClass result;
  result.tls = reader.read<uint8_t>() != 0;
  result.credit = reader.read<uint32_t>();
  const uint64_t devices = read_packed(reader);
  if (devices == 0 || devices > UINT32_MAX) reader.fail();
  result.device_count = static_cast<uint32_t>(devices);
  const size_t count = reader.check_count(read_packed(reader), kMaxKinds);
  for (size_t i = 0; i < count && !reader.failed(); ++i) {
    RankClass::Kind kind;
    kind.name = reader.read_string(kMaxTransportName);
    kind.within_host = reader.read<uint8_t>() != 0;
    result.kinds.push_back(std::move(kind));
  }
  return result;
}

std::vector<HostId> read_host_ids(ByteReader& reader, size_t count) {
  std::vector<HostId> ids;
  for (size_t i = 0; i < count && !reader.failed(); ++i) {
    reader.read_into(ids.emplace_back());
  }
  return ids;
}

// Reads addresses. Fails if one is neither the address of a host nor the unset address of a rank
// without a control plane.
std::vector<Address> read_addresses(ByteReader& reader, size_t most) {
  const std::string none = encode_address(Address());
  std::vector<Address> addresses;
  for (const std::string& text :
       read_texts(reader, {.count = most, .bytes_each = kMaxAddressBytes})) {
    ByteReader encoded(std::as_bytes(std::span(text)));
    Result<Address> address = Address::decode(encoded);
    const bool leads = address.ok() && address->family() != AF_UNIX && encoded.finished();
    if (!leads && text != none) reader.fail();
    addresses.push_back(leads ? address.value() : Address());
  }
  return addresses;
}

Status unreadable_digest() {
  return Status(Code::kBootstrapFailed,
                "what all ranks say of themselves cannot be read: install the same version of "
                "hetcomm on all ranks");
}

}  // namespace

bool RankClass::offers(std::string_view kind) const {
  return std::any_of(kinds.begin(), kinds.end(),
                     [&](const Kind& each) { return each.name == kind; });
}

Result<JobDigest> gather(int first, const std::vector<RankCard>& cards) {
  Gathering gathering(first);
  if (!cards.empty()) {
    gathering.set_instance(cards.front().instance, cards.front().link_model_bytes);
  }
  // |address|, |links| and the kinds in |its_class| are recomputed only if they differ from those
  // of the preceding rank.
  const RankCard* before = nullptr;
  std::string address;
  std::string links;
  RankClass its_class;
  for (const RankCard& card : cards) {
    if (before == nullptr || !card.control.is_same_host(before->control)) {
      address = encode_address(card.control);
    }
    if (before == nullptr || card.host_links != before->host_links)
      links = text_of(card.host_links);
    if (before == nullptr || card.kinds != before->kinds) {
      its_class.kinds.clear();
      for (const RankCard::Kind& kind : card.kinds) {
        its_class.kinds.push_back({kind.name, kind.within_host});
        gathering.add_cost(kind.name, kind.link);
      }
    }
    before = &card;
    its_class.tls = card.tls;
    its_class.credit = card.credit;
    its_class.device_count = card.device_count;
    HETCOMM_RETURN_IF_ERROR(gathering.add({.its_class = its_class,
                                           .host = card.host,
                                           .label = card.host_label,
                                           .cluster = card.cluster,
                                           .address = address,
                                           .links = links,
                                           .port = card.control.port(),
                                           .incarnation = card.incarnation,
                                           .known_devices = card.known_devices}));
  }
  return gathering.take();
}

Result<JobDigest> merge(const std::vector<JobDigest>& parts) {
  Gathering gathering(0);
  if (!parts.empty()) {
    gathering.set_instance(parts.front().instance, parts.front().link_model_bytes);
  }
  size_t size = 0;
  for (const JobDigest& part : parts) {
    size += part.size();
    const bool fits = part.host_ids.size() == part.host_count &&
                      part.known_devices.size() == part.host_count && size <= JobDigest::kMaxRanks;
    if (!fits) return unreadable_digest();
    gathering.add_silenced(part.silenced);
    if (part.must_tell_devices) gathering.tell_devices();
    for (const auto& [kind, cost] : part.costs) gathering.add_cost(kind, cost);
    std::vector<std::string> addresses;
    for (const Address& address : part.addresses) addresses.push_back(encode_address(address));
    for (size_t i = 0; i < part.size(); ++i) {
      HETCOMM_RETURN_IF_ERROR(
          gathering.add({.its_class = part.classes[part.class_of[i]],
                         .host = part.host_ids[part.host_of[i]],
                         .label = part.labels[part.label_of[i]],
                         .cluster = part.clusters[part.cluster_of[i]],
                         .address = addresses[part.address_of[i]],
                         .links = part.links[part.links_of[i]],
                         .port = part.ports[i],
                         .incarnation = part.incarnations[i],
                         .known_devices = part.known_devices[part.host_of[i]]}));
    }
  }
  JobDigest digest = gathering.take();
  digest.host_ids.clear();
  digest.known_devices.clear();
  return digest;
}

void shorten_links(JobDigest& digest, size_t most_bytes) {
  size_t bytes = 0;
  size_t kept = 0;
  while (kept < digest.links.size() && bytes + digest.links[kept].size() <= most_bytes) {
    bytes += digest.links[kept++].size();
  }
  if (kept == digest.links.size()) return;
  const auto found =
      std::find(digest.links.begin(), digest.links.begin() + static_cast<ptrdiff_t>(kept), "");
  const auto nothing = static_cast<uint32_t>(found - digest.links.begin());
  for (uint32_t& links : digest.links_of) {
    if (links < kept) continue;
    if (!digest.links[links].empty()) ++digest.silenced;
    links = nothing;
  }
  digest.links.resize(kept);
  if (nothing == kept) digest.links.emplace_back();
}

std::vector<std::byte> encode_digest(const JobDigest& digest) {
  ByteWriter writer;
  writer.write(kDigestVersion);
  write_packed(writer, digest.size());
  writer.write_raw(digest.instance);
  writer.write(digest.link_model_bytes);
  write_packed(writer, digest.silenced);
  write_packed(writer, digest.classes.size());
  for (const RankClass& each : digest.classes) write_class(writer, each);
  write_packed(writer, digest.costs.size());
  for (const auto& [kind, cost] : digest.costs) {
    writer.write_string(kind);
    writer.write(cost.latency_ns);
    writer.write(cost.bytes_per_s);
  }
  write_packed(writer, digest.host_count);
  writer.write(static_cast<uint8_t>(digest.host_ids.empty() ? 0 : 1));
  for (const HostId& id : digest.host_ids) writer.write_raw(id);
  writer.write(static_cast<uint8_t>(digest.must_tell_devices ? 1 : 0));
  write_column(writer, digest.known_devices);
  write_texts(writer, digest.labels);
  write_texts(writer, digest.clusters);
  std::vector<std::string> addresses;
  for (const Address& address : digest.addresses) addresses.push_back(encode_address(address));
  write_texts(writer, addresses);
  write_texts(writer, digest.links);
  write_column(writer, digest.host_of);
  write_by_host(writer, digest, digest.class_of);
  write_by_host(writer, digest, digest.label_of);
  write_by_host(writer, digest, digest.cluster_of);
  write_by_host(writer, digest, digest.address_of);
  write_by_host(writer, digest, digest.links_of);
  write_ports(writer, digest.ports);
  for (const uint32_t incarnation : digest.incarnations) writer.write(incarnation);
  return writer.take();
}

Result<JobDigest> decode_digest(ConstByteSpan bytes) {
  ByteReader reader(bytes);
  if (reader.read<uint16_t>() != kDigestVersion) return unreadable_digest();
  JobDigest digest;
  const size_t size = reader.check_count(read_packed(reader), JobDigest::kMaxRanks,
                                         sizeof(uint16_t) + sizeof(uint32_t));
  reader.read_into(digest.instance);
  digest.link_model_bytes = reader.read<uint32_t>();
  digest.silenced = static_cast<uint32_t>(std::min<uint64_t>(read_packed(reader), size));
  const size_t classes = reader.check_count(read_packed(reader), JobDigest::kMaxClasses);
  for (size_t i = 0; i < classes && !reader.failed(); ++i) {
    digest.classes.push_back(read_class(reader));
  }
  const size_t costs = reader.check_count(read_packed(reader), kMaxKinds);
  for (size_t i = 0; i < costs && !reader.failed(); ++i) {
    std::string kind = reader.read_string(kMaxTransportName);
    const auto latency_ns = reader.read<uint64_t>();
    digest.costs.emplace_back(std::move(kind),
                              LinkCost::bounded(latency_ns, reader.read<uint64_t>()));
  }
  digest.host_count = static_cast<uint32_t>(reader.check_count(read_packed(reader), size));
  if (reader.read<uint8_t>() != 0) digest.host_ids = read_host_ids(reader, digest.host_count);
  digest.must_tell_devices = reader.read<uint8_t>() != 0;
  digest.known_devices = read_column(reader, digest.host_ids.size(), UINT32_MAX);
  digest.labels = read_texts(reader, {.count = size, .bytes_each = kMaxHostLabel});
  digest.clusters = read_texts(reader, {.count = size, .bytes_each = kMaxClusterName});
  digest.addresses = read_addresses(reader, size);
  digest.links = read_texts(
      reader,
      {.count = size, .bytes_each = topology::kMaxHostLinksBytes, .bytes_all = kMaxLinksOfPart});
  digest.host_of = read_column(reader, size, digest.host_count);
  digest.class_of = read_by_host(reader, digest, digest.classes.size());
  digest.label_of = read_by_host(reader, digest, digest.labels.size());
  digest.cluster_of = read_by_host(reader, digest, digest.clusters.size());
  digest.address_of = read_by_host(reader, digest, digest.addresses.size());
  digest.links_of = read_by_host(reader, digest, digest.links.size());
  for (uint64_t i = 0; i < size && !reader.failed(); ++i) {
    digest.ports.push_back(reader.read<uint16_t>());
  }
  for (uint64_t i = 0; i < size && !reader.failed(); ++i) {
    digest.incarnations.push_back(reader.read<uint32_t>());
  }
  if (!reader.finished()) return unreadable_digest();
  return digest;
}

Result<Bytes> JobDigestMaker::part(int first, const std::vector<Bytes>& cards) const {
  std::vector<RankCard> decoded;
  for (size_t i = 0; i < cards.size(); ++i) {
    Result<RankCard> card = decode_card(cards[i]);
    if (!card.ok()) {
      return card.status().annotate(
          fmt::format("what rank {} says of itself", first + static_cast<int>(i)));
    }
    decoded.push_back(std::move(card).value());
  }
  Result<JobDigest> digest = gather(first, decoded);
  if (!digest.ok()) return digest.status();
  shorten_links(digest.value(), kMaxLinksOfPart);
  return encode_digest(digest.value());
}

Result<Bytes> JobDigestMaker::digest(const std::vector<Bytes>& parts) const {
  std::vector<JobDigest> decoded;
  for (const Bytes& part : parts) {
    Result<JobDigest> digest = decode_digest(part);
    if (!digest.ok()) return digest.status();
    decoded.push_back(std::move(digest).value());
  }
  Result<JobDigest> whole = merge(decoded);
  if (!whole.ok()) return whole.status();
  shorten_links(whole.value(), kMaxLinksOfJob);
  return encode_digest(whole.value());
}

}  // namespace hetcomm
