// A server that speaks just enough S3 to take uploads: it reads, counts and discards.
// It shows what a client costs, because it costs almost nothing itself.
package main

import (
	"crypto/md5"
	"crypto/tls"
	"encoding/hex"
	"encoding/xml"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

var (
	delay    = flag.Duration("delay", 0, "before each reply")
	cert     = flag.String("cert", "", "file with certificate and key, for TLS")
	requests sync.Map // method -> *int64
	received int64
	uploads  int64
	empty    = `"` + hex.EncodeToString(md5.New().Sum(nil)) + `"`
	objects  sync.Map // path -> size
	small    sync.Map // path -> bytes of objects that are read back
	buffers  = sync.Pool{New: func() any { return make([]byte, 1<<20) }}
)

func count(name string, by int64) {
	value, _ := requests.LoadOrStore(name, new(int64))
	atomic.AddInt64(value.(*int64), by)
}

func xmlReply(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	io.WriteString(w, `<?xml version="1.0" encoding="UTF-8"?>`+body)
}

func handle(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if r.URL.Path == "/-/stats" {
		var usage syscall.Rusage
		syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
		cpu := float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
		fmt.Fprintf(w, `{"cpu":%f,"received":%d`, cpu, atomic.LoadInt64(&received))
		requests.Range(func(k, v any) bool {
			fmt.Fprintf(w, `,%q:%d`, k, atomic.LoadInt64(v.(*int64)))
			return true
		})
		fmt.Fprint(w, "}")
		return
	}
	count(r.Method, 1)
	keep := strings.HasSuffix(r.URL.Path, "manifest.json")
	var size int64
	if keep && r.Method == "PUT" {
		body, _ := io.ReadAll(r.Body)
		small.Store(r.URL.Path, body)
		size = int64(len(body))
	} else if r.Method == "PUT" || r.Method == "POST" {
		buffer := buffers.Get().([]byte)
		for {
			n, err := r.Body.Read(buffer)
			size += int64(n)
			if err != nil {
				break
			}
		}
		buffers.Put(buffer)
	}
	atomic.AddInt64(&received, size)
	if *delay > 0 {
		time.Sleep(*delay)
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case r.Method == "PUT" && r.Header.Get("x-amz-checksum-crc64nvme") == "AAAAAAAAAAA=":
		xmlReply(w, 400, "<Error><Code>BadDigest</Code></Error>")
	case r.Method == "PUT":
		if !query.Has("partNumber") {
			objects.Store(r.URL.Path, size)
		}
		w.Header().Set("ETag", empty)
	case r.Method == "POST" && query.Has("uploads"):
		id := atomic.AddInt64(&uploads, 1)
		xmlReply(w, 200, fmt.Sprintf("<InitiateMultipartUploadResult><Bucket>%s</Bucket>"+
			"<Key>x</Key><UploadId>%d</UploadId></InitiateMultipartUploadResult>", bucket, id))
	case r.Method == "POST":
		objects.Store(r.URL.Path, size)
		xmlReply(w, 200, "<CompleteMultipartUploadResult><ETag>"+empty+
			"</ETag></CompleteMultipartUploadResult>")
	case r.Method == "DELETE":
		objects.Delete(r.URL.Path)
		small.Delete(r.URL.Path)
		w.WriteHeader(204)
	case r.Method == "GET" && key == "" && query.Has("location"):
		xmlReply(w, 200, "<LocationConstraint></LocationConstraint>")
	case r.Method == "GET" && key == "":
		list(w, bucket, query.Get("prefix"))
	case r.Method == "HEAD" && key == "":
		w.WriteHeader(200)
	case r.Method == "HEAD":
		if size, ok := objects.Load(r.URL.Path); ok {
			w.Header().Set("ETag", empty)
			w.Header().Set("Content-Length", strconv.FormatInt(size.(int64), 10))
		} else {
			w.WriteHeader(404)
		}
	default:
		if body, ok := small.Load(r.URL.Path); ok {
			w.Header().Set("ETag", empty)
			w.Write(body.([]byte))
		} else {
			xmlReply(w, 404, "<Error><Code>NoSuchKey</Code></Error>")
		}
	}
}

func list(w http.ResponseWriter, bucket, prefix string) {
	var out strings.Builder
	fmt.Fprintf(&out, "<ListBucketResult><Name>%s</Name><IsTruncated>false</IsTruncated>", bucket)
	objects.Range(func(path, size any) bool {
		key := strings.TrimPrefix(path.(string), "/"+bucket+"/")
		if strings.HasPrefix(key, prefix) {
			out.WriteString("<Contents><Key>")
			xml.EscapeText(&out, []byte(key))
			fmt.Fprintf(&out, "</Key><LastModified>%s</LastModified><ETag>%s</ETag><Size>%d</Size></Contents>",
				time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), empty, size)
		}
		return true
	})
	out.WriteString("</ListBucketResult>")
	xmlReply(w, 200, out.String())
}

func main() {
	flag.Parse()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	if *cert == "" {
		http.Serve(listener, http.HandlerFunc(handle))
		return
	}
	// No store speaks HTTP/2, and some clients would take it.
	server := http.Server{Handler: http.HandlerFunc(handle),
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}}
	server.ServeTLS(listener, *cert, *cert)
}
