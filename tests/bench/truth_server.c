/* The ground truth of the load generator's benchmark: streams tokens on an absolute schedule and notes when it really
 * wrote each one. One thread, epoll, no allocation while it streams.
 *
 *   truth_server TTFT_US INTERVAL_US USAGE ROLE     USAGE: none | last | running     ROLE: 0 | 1
 *
 * Prints its port. A POST is answered with as many tokens as its "max_tokens" asks for: token i is due at the arrival of
 * the request + TTFT + i * INTERVAL, whatever became of the ones before it. With ROLE an event with a role and no text
 * comes at once. GET /truth gives one line a request that has ended, in the order of their arrival, and forgets them:
 * received first-sent last-sent tokens latest (all ns on CLOCK_MONOTONIC; `latest`: most that a token was behind its
 * schedule). GET of anything else names the model.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_CONNECTIONS = 2048, BODY = 1 << 16, MOST_RECORDS = 1 << 16, HEAD_LIMIT = 16384 };

typedef struct {
    int fd, chat, tokens, next, heap; /* next: token to send; heap: place in the heap, -1 when idle */
    int64_t received, due, first, last, latest;
    size_t have, want, body_at; /* bytes read of the request, of the whole request, before its body */
    uint64_t number;
    char in[BODY];
} Connection;

typedef struct {
    uint64_t number;
    int64_t received, first, last, latest;
    int tokens;
} Record;

static Connection *connections[MOST_CONNECTIONS];
static Connection *heap[MOST_CONNECTIONS];
static Record records[MOST_RECORDS];
static int heap_size, record_count, usage_mode, role;
static int64_t ttft_ns, interval_ns;
static uint64_t arrivals;
static const char *pad = "autotune-truth-model-with-a-name-as-long-as-they-are";

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void place(int at, Connection *c) {
    heap[at] = c;
    c->heap = at;
}

static void sift(int at) {
    Connection *c = heap[at];
    while (at > 0 && heap[(at - 1) / 2]->due > c->due) {
        place(at, heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        int child = 2 * at + 1;
        if (child >= heap_size) break;
        if (child + 1 < heap_size && heap[child + 1]->due < heap[child]->due) child++;
        if (heap[child]->due >= c->due) break;
        place(at, heap[child]);
        at = child;
    }
    place(at, c);
}

static void leave_heap(Connection *c) {
    int at = c->heap;
    if (at < 0) return;
    c->heap = -1;
    Connection *last = heap[--heap_size];
    if (at < heap_size) {
        place(at, last);
        sift(at);
    }
}

static void drop(Connection *c) {
    leave_heap(c);
    connections[c->fd] = NULL;
    close(c->fd);
    free(c);
}

/* A whole message or nothing: what does not fit the socket's buffer is no ground truth. */
static int put(Connection *c, const char *data, int length) {
    ssize_t sent = send(c->fd, data, (size_t)length, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent == length) return 1;
    if (sent >= 0 || errno == EAGAIN) {
        fprintf(stderr, "a client reads too slowly: %d bytes did not fit\n", length);
        exit(3);
    }
    return 0;
}

static int chunk(char *out, const char *data) {
    int length = (int)strlen(data);
    return sprintf(out, "%x\r\n%s\r\n", length, data);
}

static int event(char *out, const Connection *c, const char *text, const char *usage, const char *finish) {
    char data[1024];
    const char *kind = c->chat ? "chat.completion.chunk" : "text_completion";
    char body[256];
    if (c->chat)
        sprintf(body, "\"delta\":{%s}", text);
    else
        sprintf(body, "%s\"logprobs\":null", text);
    sprintf(data, "data: {\"id\":\"cmpl-%llu\",\"object\":\"%s\",\"created\":1700000000,\"model\":\"%s\",\"choices\":[{\"index\":0,%s,\"finish_reason\":%s}]%s}\n\n",
            (unsigned long long)c->number, kind, pad, body, finish, usage);
    return chunk(out, data);
}

static void begin(Connection *c, int64_t received) {
    char out[2048];
    char *body = c->in + c->body_at;
    const char *asked = strstr(body, "max_tokens\"");
    if (!asked) asked = strstr(body, "max_completion_tokens\"");
    c->tokens = asked ? atoi(strchr(asked, ':') + 1) : 16;
    c->chat = strstr(c->in, "/chat/") != NULL;
    c->number = arrivals++;
    c->received = received;
    c->due = received + ttft_ns;
    c->next = 0;
    c->latest = 0;
    c->have = c->want = 0;
    int length = sprintf(out, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n");
    if (role) length += event(out + length, c, c->chat ? "\"role\":\"assistant\",\"content\":\"\"" : "\"text\":\"\",", "", "null");
    if (!put(c, out, length)) {
        drop(c);
        return;
    }
    place(heap_size, c);
    heap_size++;
    sift(c->heap);
}

static void token(Connection *c) {
    char out[4096], usage[160] = "";
    int last = c->next + 1 == c->tokens;
    if (usage_mode == 2)
        sprintf(usage, ",\"usage\":{\"prompt_tokens\":64,\"completion_tokens\":%d,\"total_tokens\":%d}", c->next + 1, c->next + 65);
    int length = event(out, c, c->chat ? "\"content\":\" tok\"" : "\"text\":\" tok\",", usage, last ? "\"length\"" : "null");
    int64_t sent = now_ns();
    if (last) {
        char data[512];
        if (usage_mode) {
            sprintf(data, "data: {\"id\":\"cmpl-%llu\",\"object\":\"%s\",\"created\":1700000000,\"model\":\"%s\",\"choices\":[],\"usage\":{\"prompt_tokens\":64,\"completion_tokens\":%d,\"total_tokens\":%d}}\n\n",
                    (unsigned long long)c->number, c->chat ? "chat.completion.chunk" : "text_completion", pad, c->tokens, c->tokens + 64);
            length += chunk(out + length, data);
        }
        length += chunk(out + length, "data: [DONE]\n\n");
        length += sprintf(out + length, "0\r\n\r\n");
    }
    if (!put(c, out, length)) {
        drop(c);
        return;
    }
    if (c->next == 0) c->first = sent;
    c->last = sent;
    if (sent - c->due > c->latest) c->latest = sent - c->due;
    c->next++;
    if (last) {
        if (record_count < MOST_RECORDS)
            records[record_count++] = (Record){c->number, c->received, c->first, c->last, c->latest, c->tokens};
        leave_heap(c);
        return;
    }
    c->due = c->received + ttft_ns + interval_ns * c->next;
    sift(c->heap);
}

static int by_number(const void *a, const void *b) {
    uint64_t one = ((const Record *)a)->number, other = ((const Record *)b)->number;
    return one < other ? -1 : one > other;
}

static void answer_get(Connection *c) {
    size_t room = 256 + (size_t)record_count * 128;
    char *out = malloc(room + 512), *body = malloc(room + 512);
    if (!out || !body) die("malloc");
    int length = 0;
    if (strncmp(c->in, "GET /truth", 10) == 0) {
        qsort(records, (size_t)record_count, sizeof(Record), by_number);
        for (int i = 0; i < record_count; i++) {
            Record *r = &records[i];
            length += sprintf(body + length, "%lld %lld %lld %d %lld\n", (long long)r->received, (long long)r->first,
                              (long long)r->last, r->tokens, (long long)r->latest);
        }
        record_count = 0;
    } else {
        length = sprintf(body, "{\"object\":\"list\",\"status\":\"ok\",\"data\":[{\"id\":\"%s\",\"object\":\"model\",\"owned_by\":\"bench\",\"max_model_len\":65536}]}", "truth");
    }
    int head = sprintf(out, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n", length);
    c->have = c->want = 0;
    for (ssize_t done = 0; done < head;) done += send(c->fd, out + done, (size_t)(head - done), MSG_NOSIGNAL);
    for (ssize_t done = 0; done < length;) {
        ssize_t sent = send(c->fd, body + done, (size_t)(length - done), MSG_NOSIGNAL);
        if (sent < 0) break;
        done += sent;
    }
    free(out);
    free(body);
}

static void readable(Connection *c) {
    int64_t at = now_ns();
    for (;;) {
        if (c->have >= BODY - 1) { /* a long prompt: only its head and the end, where max_tokens may stand, matter */
            size_t keep = 4096;
            memmove(c->in + c->body_at, c->in + c->have - keep, keep);
            c->want -= c->have - keep - c->body_at;
            c->have = c->body_at + keep;
        }
        ssize_t got = recv(c->fd, c->in + c->have, BODY - 1 - c->have, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN)) {
            drop(c);
            return;
        }
        if (got < 0) return;
        c->have += (size_t)got;
        c->in[c->have] = 0;
        if (!c->want) {
            char *end = strstr(c->in, "\r\n\r\n");
            if (!end) {
                if (c->have > HEAD_LIMIT) {
                    drop(c);
                    return;
                }
                continue;
            }
            char *field = strcasestr(c->in, "\r\ncontent-length:");
            c->body_at = (size_t)(end + 4 - c->in);
            c->want = c->body_at + (field && field < end ? strtoul(field + 17, NULL, 10) : 0);
        }
        if (c->have >= c->want) {
            c->in[c->have] = 0;
            if (strncmp(c->in, "GET", 3) == 0)
                answer_get(c);
            else
                begin(c, at);
            return;
        }
    }
}

int main(int count, char **words) {
    if (count != 5) {
        fprintf(stderr, "usage: truth_server TTFT_US INTERVAL_US none|last|running 0|1\n");
        return 2;
    }
    ttft_ns = atoll(words[1]) * 1000;
    interval_ns = atoll(words[2]) * 1000;
    usage_mode = strcmp(words[3], "running") == 0 ? 2 : strcmp(words[3], "last") == 0;
    role = atoi(words[4]);
    mlockall(MCL_CURRENT | MCL_FUTURE);
    struct sched_param first = {.sched_priority = 20};
    int real_time = sched_setscheduler(0, SCHED_FIFO, &first) == 0;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 1024)) die("listen");
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("%d %d\n", ntohs(address.sin_port), real_time);
    fflush(stdout);
    int poll = epoll_create1(0);
    struct epoll_event wanted = {.events = EPOLLIN, .data.fd = listener}, found[256];
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &wanted);
    for (;;) {
        struct timespec wait = {3600, 0};
        if (heap_size) {
            int64_t left = heap[0]->due - now_ns();
            if (left < 0) left = 0;
            wait = (struct timespec){left / 1000000000, left % 1000000000};
        }
        int ready = epoll_pwait2(poll, found, 256, &wait, NULL);
        if (ready < 0 && errno != EINTR) die("epoll_pwait2");
        /* Tokens first: they have a schedule, requests do not. */
        while (heap_size && heap[0]->due <= now_ns()) token(heap[0]);
        for (int i = 0; i < ready; i++) {
            int fd = found[i].data.fd;
            if (fd == listener) {
                int taken;
                while ((taken = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    if (taken >= MOST_CONNECTIONS) {
                        close(taken);
                        continue;
                    }
                    Connection *c = calloc(1, sizeof *c);
                    if (!c) die("calloc");
                    c->fd = taken;
                    c->heap = -1;
                    connections[taken] = c;
                    setsockopt(taken, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    int room = 1 << 20;
                    setsockopt(taken, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
                    struct epoll_event more = {.events = EPOLLIN, .data.fd = taken};
                    epoll_ctl(poll, EPOLL_CTL_ADD, taken, &more);
                }
            } else if (connections[fd]) {
                readable(connections[fd]);
            }
            while (heap_size && heap[0]->due <= now_ns()) token(heap[0]);
        }
    }
}
