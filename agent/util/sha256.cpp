// SPDX-License-Identifier: Apache-2.0
#include "agent/util/sha256.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "agent/util/file.h"
#include "agent/util/unique_fd.h"

namespace kdtree {
namespace fs = std::filesystem;
namespace {

class Digest {
 public:
  Digest() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr);
  }
  void add(const void* data, std::size_t size) { EVP_DigestUpdate(context_.get(), data, size); }
  std::string hex() {
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    EVP_DigestFinal_ex(context_.get(), bytes, &size);
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    for (unsigned int i = 0; i < size; ++i) {
      text += kDigits[bytes[i] >> 4];
      text += kDigits[bytes[i] & 15];
    }
    return text;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace

std::string sha256_hex(std::string_view bytes) {
  Digest digest;
  digest.add(bytes.data(), bytes.size());
  return digest.hex();
}

Result<std::string> sha256_file(const fs::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (!fd) return tl::make_unexpected(io_error("opening", path, errno));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return fail(ExitCode::refused, path.string() + " is not a regular file");
  Digest digest;
  char buffer[1 << 16];
  while (true) {
    const ssize_t got = ::read(fd.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return tl::make_unexpected(io_error("reading", path, errno));
    if (got == 0) return digest.hex();
    digest.add(buffer, static_cast<std::size_t>(got));
  }
}

Result<std::map<std::string, std::string>> sha256_tree(const fs::path& dir) {
  std::map<std::string, std::string> digests;
  std::error_code error;
  auto entry = fs::recursive_directory_iterator(dir, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    const fs::file_status status = entry->symlink_status(error);
    if (error) break;
    if (fs::is_directory(status)) continue;
    if (!fs::is_regular_file(status))
      return fail(ExitCode::refused, entry->path().string() + " is not a regular file");
    KDTREE_TRY_ASSIGN(digests[entry->path().lexically_relative(dir).string()],
                      sha256_file(entry->path()));
  }
  if (error) return tl::make_unexpected(io_error("walking", dir, error.value()));
  return digests;
}

std::string sha256_of_tree(const std::map<std::string, std::string>& digests) {
  std::string listing;
  for (const auto& [path, digest] : digests)
    listing.append(digest).append("  ").append(path).append("\n");
  return sha256_hex(listing);
}

}  // namespace kdtree
