#include "src/bootstrap/relay.h"

#include <algorithm>
#include <utility>

#include "src/bootstrap/variables.h"
#include "src/net/key.h"
#include "src/system/clock.h"
#include "src/system/random.h"

namespace hetcomm {
namespace {

// The longest that a relay waits for its readers before it shuts down. A reader is rarely more than
// a moment behind, but it may have died.
constexpr uint64_t kLingerNs = 1'000'000'000;

Credentials credentials_of(const RelayContact& contact, const Secret& secret) {
  Identity identity = identity_of("", "relay", 0);
  identity.instance = contact.instance;
  return {.identity = identity, .secret = secret};
}

}  // namespace

void RelayContact::encode(ByteWriter& writer) const {
  writer.write(static_cast<uint8_t>(exists() ? 1 : 0));
  if (!exists()) return;
  host.encode(writer);
  writer.write_raw(instance);
}

Result<RelayContact> RelayContact::decode(ByteReader& reader) {
  const Status malformed(Code::kBootstrapFailed, "a malformed place of a relay");
  RelayContact contact;
  const auto exists = reader.read<uint8_t>();
  if (reader.failed() || exists > 1) return malformed;
  if (exists == 0) return contact;
  std::optional<ListeningHost> host = ListeningHost::decode(reader);
  if (!host) return malformed;
  contact.host = *std::move(host);
  const ConstByteSpan instance = reader.read_raw(contact.instance.size());
  if (reader.failed()) return malformed;
  std::copy(instance.begin(), instance.end(), contact.instance.begin());
  return contact;
}

Relay::Relay(const Config& config, Log& log) : config_(config), log_(log) {}

Relay::~Relay() {
  if (server_) server_->wait_for_readers(kLingerNs);
}

int Relay::small_job() const { return static_cast<int>(config_.number(variable::kSmallJob)); }

void Relay::start(const Secret& secret, int rank, const Address& route) {
  if (std::exchange(started_, true)) return;
  rank_ = rank;
  secret_ = secret;
  const Status status = try_start(route);
  if (!status.ok()) log_.warn("this rank passes nothing on to others: {}", status.text());
}

Status Relay::try_start(const Address& route) {
  Result<std::shared_ptr<const TlsContext>> tls = TlsContext::create(config_, log_);
  if (!tls.ok()) return tls.status();
  tls_ = std::move(tls).value();
  RelayContact contact;
  HETCOMM_RETURN_IF_ERROR(fill_random(contact.instance));
  auto server = StoreServer::start(
      log_, {.credentials = credentials_of(contact, secret_),
             .job_key = {},
             .hosts = {},
             .ports = {},
             .bounds = {},
             .tls = tls_,
             .relay = StoreServer::Options::Relay{
                 .config = config_, .route = route, .rank = static_cast<int32_t>(rank_)}});
  if (!server.ok()) return server.status();
  server_ = std::move(server).value();
  contact.host = server_->host();
  contact_ = std::move(contact);
  return {};
}

void Relay::keep(std::string key, std::vector<std::byte> value, uint64_t until_ns) {
  if (!server_) return;
  if (const uint64_t now = now_ns(); now > next_expiry_ns_) forget_old(now);
  uint64_t& until = kept_[key];
  until = std::max(until, until_ns);
  next_expiry_ns_ = std::min(next_expiry_ns_, until);
  server_->keep(std::move(key), std::move(value));
}

void Relay::forget_old(uint64_t now) {
  next_expiry_ns_ = kForever;
  std::erase_if(kept_, [&](const auto& entry) {
    if (entry.second < now)
      server_->forget(entry.first);
    else
      next_expiry_ns_ = std::min(next_expiry_ns_, entry.second);
    return entry.second < now;
  });
}

void Relay::expect_readers(std::string key, size_t count) {
  if (server_) server_->expect_readers(std::move(key), count);
}

Result<std::unique_ptr<StoreClient>> Relay::client_of(int rank, const RelayContact& contact) const {
  if (!contact.exists()) return Status(Code::kUnsupported, "it has no relay");
  std::vector<Address> addresses = contact.host.addresses;
  if (contact_.exists()) {
    Result<std::vector<Address>> usable = usable_addresses(contact_.host, contact.host);
    if (!usable.ok()) return usable.status();
    addresses = std::move(usable).value();
  }
  return std::make_unique<StoreClient>(
      log_, StoreClient::Options{.credentials = credentials_of(contact, secret_),
                                 .rank = rank_,
                                 .addresses = std::move(addresses),
                                 .tls = tls_,
                                 .relay = static_cast<int32_t>(rank)});
}

}  // namespace hetcomm
