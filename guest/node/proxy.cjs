'use strict'
/**
 * Preloaded into Node inside a sandbox (`NODE_OPTIONS=--require=…`): sends `fetch`, `http` and `https` through the proxy that
 * the environment names. Newer versions of Node support that themselves (NODE_USE_ENV_PROXY); there this file does nothing.
 * It restricts nothing: without it a program has no network at all.
 */
const http = require('node:http')
const https = require('node:https')
const net = require('node:net')
const tls = require('node:tls')

const [major, minor] = process.versions.node.split('.').map(Number)
const supportsProxies = major > 24 || (major === 24 && minor >= 5) || (major === 22 && minor >= 21)
const given =
  process.env.HTTPS_PROXY || process.env.https_proxy || process.env.HTTP_PROXY || process.env.http_proxy

function proxyOf(text) {
  try {
    const url = new URL(text)
    return url.protocol === 'http:' ? url : undefined
  } catch {
    return undefined
  }
}

const direct = (process.env.NO_PROXY || process.env.no_proxy || '')
  .split(',')
  .map((name) => name.trim().toLowerCase())
  .filter(Boolean)

function bypassesProxy(host) {
  const name = String(host)
    .toLowerCase()
    .replace(/^\[|\]$/g, '')
  return direct.some((entry) => name === entry || name.endsWith(entry.startsWith('.') ? entry : `.${entry}`))
}

/** Opens a connection to host and port through the proxy. */
function connectThrough(proxy, host, port, done) {
  const name = host.includes(':') && !host.startsWith('[') ? `[${host}]` : host
  const socket = net.connect({ host: proxy.hostname.replace(/^\[|\]$/g, ''), port: Number(proxy.port || 80) })
  let received = Buffer.alloc(0)
  let answered = false
  const finish = (error) => {
    if (answered) return
    answered = true
    socket.removeListener('error', finish)
    socket.removeListener('close', closed)
    socket.removeListener('data', onData)
    if (!error) return done(null, socket)
    socket.on('error', () => {}).destroy()
    done(error)
  }
  const closed = () => finish(new Error(`the proxy closed the connection to ${name}:${port}`))
  const onData = (chunk) => {
    received = Buffer.concat([received, chunk])
    const end = received.indexOf('\r\n\r\n')
    if (end < 0) return received.length > 65536 ? closed() : undefined
    const head = received.toString('latin1', 0, end)
    if (/^HTTP\/1\.[01] 200/.test(head)) {
      socket.pause()
      if (received.length > end + 4) socket.unshift(received.subarray(end + 4))
      return finish()
    }
    const [, reason = head.split('\r\n')[0]] = /^x-ringfence-reason: (.*)$/im.exec(head) || []
    finish(Object.assign(new Error(`ringfence: ${reason}`), { code: 'ERR_RINGFENCE_REFUSED' }))
  }
  socket.on('error', finish).on('close', closed).on('data', onData)
  const user = proxy.username
    ? `Proxy-Authorization: Basic ${Buffer.from(`${decodeURIComponent(proxy.username)}:${decodeURIComponent(proxy.password)}`).toString('base64')}\r\n`
    : ''
  socket.setNoDelay(true)
  socket.write(`CONNECT ${name}:${port} HTTP/1.1\r\nHost: ${name}:${port}\r\n${user}\r\n`)
}

/** Makes the agents of `http` and `https` connect through the proxy. */
function patchAgents(proxy) {
  for (const [module, secure] of [
    [http, false],
    [https, true],
  ]) {
    const createDirectly = module.Agent.prototype.createConnection
    module.Agent.prototype.createConnection = function createConnection(options, done) {
      const host = options.host || options.hostname || 'localhost'
      if (
        options.socketPath ||
        options.path?.startsWith?.('\0') ||
        bypassesProxy(host) ||
        typeof done !== 'function'
      )
        return createDirectly.call(this, options, done)
      const port = options.port || (secure ? 443 : 80)
      connectThrough(proxy, host, port, (error, socket) => {
        if (error) return done(error)
        if (!secure) {
          done(null, socket)
          // Resume only after the caller has attached its listeners.
          return setImmediate(() => socket.resume())
        }
        const servername = options.servername || (net.isIP(host) ? '' : host)
        done(null, tls.connect({ ...options, socket, servername, path: undefined, host }))
      })
      return undefined
    }
  }
}

const DISPATCHER = Symbol.for('undici.globalDispatcher.1')

/** Patches at the first `fetch` and not earlier, because loading undici takes longer than most programs run. */
function patchFetch(proxy) {
  const original = globalThis.fetch
  if (typeof original !== 'function') return
  let ready = false
  const prepare = () => {
    ready = true
    // Using `Headers` loads undici with its default dispatcher, whose class is not exported.
    void new globalThis.Headers()
    const current = globalThis[DISPATCHER]
    if (current?.constructor.name !== 'Agent') return
    const Agent = current.constructor
    const connect = (options, done) => {
      const port = Number(options.port || (options.protocol === 'https:' ? 443 : 80))
      const host = options.hostname
      const join = (error, socket) => {
        if (error) return done(error)
        if (options.protocol !== 'https:') return done(null, socket)
        const servername = options.servername || (net.isIP(host) ? '' : host)
        const secure = tls.connect({ socket, servername, host, ALPNProtocols: ['http/1.1'] })
        secure.once('error', done).once('secureConnect', () => {
          secure.removeListener('error', done)
          done(null, secure)
        })
      }
      if (!bypassesProxy(host)) return connectThrough(proxy, host, port, join)
      const plain = net.connect({ host: host.replace(/^\[|\]$/g, ''), port })
      plain.once('error', join).once('connect', () => {
        plain.removeListener('error', join)
        join(null, plain)
      })
    }
    globalThis[DISPATCHER] = new Agent({ connect })
  }
  globalThis.fetch = function fetch(input, init) {
    if (!ready) prepare()
    return original(input, init)
  }
}

const proxy = given && !supportsProxies ? proxyOf(given) : undefined
if (proxy) {
  patchAgents(proxy)
  patchFetch(proxy)
}
