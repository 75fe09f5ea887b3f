#include "channel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mbedtls/ctr_drbg.h>
#include <mbedtls/entropy.h>
#include <mbedtls/pk.h>
#include <mbedtls/ssl.h>
#include <mbedtls/x509_crt.h>

/* The name in the control plane's certificate. SECURITY: Pods have certificates of the same authority with other names. */
static const char CONTROL_PLANE[] = "CN=control.ringfence";

struct secure {
  mbedtls_ssl_context ssl;
  bool wants_write;
};

static mbedtls_entropy_context entropy;
static mbedtls_ctr_drbg_context random_numbers;
static mbedtls_x509_crt certificate, authority;
static mbedtls_pk_context key;
static mbedtls_ssl_config config;

/* The text with its NUL, as the parsers of PEM want it. */
static const unsigned char *take(const char *name, size_t *length) {
  char *value = getenv(name);
  if (!value) fail("no certificate");
  *length = strlen(value) + 1;
  return (const unsigned char *)value;
}

static void forget(const char *name) {
  char *value = getenv(name);
  if (value) memset(value, 0, strlen(value));
  unsetenv(name);
}

void secure_setup(void) {
  size_t length;
  mbedtls_entropy_init(&entropy);
  mbedtls_ctr_drbg_init(&random_numbers);
  mbedtls_x509_crt_init(&certificate);
  mbedtls_x509_crt_init(&authority);
  mbedtls_pk_init(&key);
  mbedtls_ssl_config_init(&config);
  if (mbedtls_ctr_drbg_seed(&random_numbers, mbedtls_entropy_func, &entropy, NULL, 0)) fail("no random numbers");
  const unsigned char *text = take("RINGFENCE_CERTIFICATE", &length);
  if (mbedtls_x509_crt_parse(&certificate, text, length)) fail("the certificate cannot be read");
  text = take("RINGFENCE_AUTHORITY", &length);
  if (mbedtls_x509_crt_parse(&authority, text, length)) fail("the authority cannot be read");
  text = take("RINGFENCE_KEY", &length);
  if (mbedtls_pk_parse_key(&key, text, length, NULL, 0)) fail("the key cannot be read");
  forget("RINGFENCE_KEY");
  if (mbedtls_ssl_config_defaults(&config, MBEDTLS_SSL_IS_SERVER, MBEDTLS_SSL_TRANSPORT_STREAM,
                                  MBEDTLS_SSL_PRESET_DEFAULT) ||
      mbedtls_ssl_conf_own_cert(&config, &certificate, &key))
    fail("TLS cannot be set up");
  mbedtls_ssl_conf_rng(&config, mbedtls_ctr_drbg_random, &random_numbers);
  mbedtls_ssl_conf_ca_chain(&config, &authority, NULL);
  mbedtls_ssl_conf_authmode(&config, MBEDTLS_SSL_VERIFY_REQUIRED);
  mbedtls_ssl_conf_min_version(&config, MBEDTLS_SSL_MAJOR_VERSION_3, MBEDTLS_SSL_MINOR_VERSION_3);
  mbedtls_ssl_conf_renegotiation(&config, MBEDTLS_SSL_RENEGOTIATION_DISABLED);
}

static int send_bytes(void *fd, const unsigned char *from, size_t length) {
  ssize_t sent = send(*(int *)fd, from, length, MSG_NOSIGNAL);
  if (sent >= 0) return (int)sent;
  return errno == EAGAIN || errno == EINTR ? MBEDTLS_ERR_SSL_WANT_WRITE : MBEDTLS_ERR_SSL_INTERNAL_ERROR;
}

static int receive_bytes(void *fd, unsigned char *to, size_t most) {
  ssize_t got = recv(*(int *)fd, to, most, 0);
  if (got >= 0) return (int)got;
  return errno == EAGAIN || errno == EINTR ? MBEDTLS_ERR_SSL_WANT_READ : MBEDTLS_ERR_SSL_INTERNAL_ERROR;
}

struct secure *secure_open(int *fd) {
  struct secure *secure = calloc(1, sizeof *secure);
  if (!secure) fail("out of memory");
  mbedtls_ssl_init(&secure->ssl);
  if (mbedtls_ssl_setup(&secure->ssl, &config)) fail("out of memory");
  mbedtls_ssl_set_bio(&secure->ssl, fd, send_bytes, receive_bytes, NULL);
  return secure;
}

/* 0 when the socket has to be waited for, otherwise what the library said. */
static int settle(struct secure *secure, int result) {
  secure->wants_write = result == MBEDTLS_ERR_SSL_WANT_WRITE;
  return result == MBEDTLS_ERR_SSL_WANT_READ || result == MBEDTLS_ERR_SSL_WANT_WRITE ? 0 : result;
}

static bool is_control_plane(const mbedtls_ssl_context *ssl) {
  char name[256];
  const mbedtls_x509_crt *peer = mbedtls_ssl_get_peer_cert(ssl);
  return peer && mbedtls_ssl_get_verify_result(ssl) == 0 &&
         mbedtls_x509_dn_gets(name, sizeof name, &peer->subject) > 0 && !strcmp(name, CONTROL_PLANE);
}

int secure_handshake(struct secure *secure) {
  int result = mbedtls_ssl_handshake(&secure->ssl);
  if (!result) return is_control_plane(&secure->ssl) ? 1 : -1;
  return settle(secure, result) ? -1 : 0;
}

int secure_read(struct secure *secure, unsigned char *to, size_t most) {
  int result = mbedtls_ssl_read(&secure->ssl, to, most);
  if (result > 0) return result;
  return result && !settle(secure, result) ? 0 : -1;
}

int secure_write(struct secure *secure, const unsigned char *from, size_t length) {
  int result = mbedtls_ssl_write(&secure->ssl, from, length);
  if (result > 0) return secure->wants_write = false, result;
  return settle(secure, result) ? -1 : 0;
}

bool secure_wants_write(const struct secure *secure) { return secure->wants_write; }

void secure_close(struct secure *secure) {
  mbedtls_ssl_close_notify(&secure->ssl);
  mbedtls_ssl_free(&secure->ssl);
  free(secure);
}
