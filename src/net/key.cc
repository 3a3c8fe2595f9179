#include "src/net/key.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "src/base/bytes.h"
#include "src/net/hash.h"
#include "src/system/random.h"

namespace hetcomm {

// The secret has its own page, because the kernel can exclude only whole pages from core dumps.
class Secret::Page {
 public:
  explicit Page(const Bytes& bytes) {
    void* const base =
        ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    ::madvise(base, kSize, MADV_DONTDUMP);
    bytes_ = new (base) Bytes(bytes);
  }
  ~Page() {
    wipe(*bytes_);
    ::munmap(bytes_, kSize);
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  const Bytes& bytes() const { return *bytes_; }

 private:
  static constexpr size_t kSize = 4096;  // the kernel rounds it up to its own page size
  Bytes* bytes_ = nullptr;
};

Secret::Secret(const Bytes& bytes) : page_(std::make_shared<Page>(bytes)) {}

const Secret::Bytes& Secret::bytes() const {
  static constexpr Bytes kNone{};
  return page_ == nullptr ? kNone : page_->bytes();
}

Secret secret_from(ConstByteSpan user_secret) {
  ByteWriter writer;
  writer.write_string("hetcomm secret 1");
  writer.write_bytes(user_secret);
  std::vector<std::byte> bytes = writer.take();
  Digest digest = sha256(bytes);
  wipe(bytes);
  Secret secret(digest);
  wipe(digest);
  return secret;
}

Result<Secret> random_secret() {
  Secret::Bytes bytes{};
  HETCOMM_RETURN_IF_ERROR(fill_random(bytes));
  Secret secret(bytes);
  wipe(bytes);
  return secret;
}

Secret secret_of_job(const Secret& secret, std::string_view name) {
  ByteWriter writer;
  writer.write_string("hetcomm job 1");
  writer.write_string(name);
  Digest digest = hmac_sha256(secret, writer.bytes());
  Secret bound(digest);
  wipe(digest);
  return bound;
}

Identity identity_of(std::string_view job_name, std::string_view communicator_name,
                     uint32_t epoch) {
  ByteWriter writer;
  writer.write_string("hetcomm identity 1");
  writer.write_string(job_name);
  writer.write_string(communicator_name);
  const Digest digest = sha256(writer.bytes());
  Identity identity;
  std::copy_n(digest.begin(), identity.job.size(), identity.job.begin());
  identity.epoch = epoch;
  return identity;
}

}  // namespace hetcomm
