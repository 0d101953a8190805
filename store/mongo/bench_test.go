package mongo_test

import (
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/storetest"
	"github.com/sluicebox/sluicebox/store/storetest/rigs"
	"github.com/sluicebox/sluicebox/store/storetest/servers"
)

// BenchmarkRows claims and completes batches of documents, each in a transaction committed
// by a majority. It also measures two plain updates of the same documents for comparison.
func BenchmarkRows(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := newRig(b, servers.Mongo(b), flowBox())
			next := 0
			var claiming, settling, plain time.Duration
			for b.Loop() {
				b.StopTimer()
				claims, outcomes, ids := make([]store.ClaimRow, n), make([]store.Outcome, n), make([]string, n)
				docs := make([]bson.D, 2*n)
				at := time.Now()
				for i := range n {
					next++
					ids[i] = fmt.Sprint("row ", next)
					docs[i], docs[n+i] = pending(ids[i]), pending("plain "+ids[i])
					claims[i] = row(ids[i])
					outcomes[i] = rigs.Outcome(ids[i], store.Completed)
					outcomes[i].At = at
					ids[i] = "plain " + ids[i]
				}
				if _, err := r.docs().InsertMany(b.Context(), docs, options.InsertMany().SetOrdered(false)); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				began := time.Now()
				r.claim(b, claims...)
				claimed := time.Now()
				r.settle(b, outcomes...)
				settled := time.Now()
				for _, status := range []string{"PROCESSING", "COMPLETED"} {
					filter := bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}, {Key: "status", Value: bson.D{{Key: "$in", Value: bson.A{"PENDING", "PROCESSING"}}}}}
					set := bson.D{{Key: "$set", Value: bson.D{{Key: "status", Value: status}, {Key: "processedAt", Value: at}}}}
					if _, err := r.docs().UpdateMany(b.Context(), filter, set); err != nil {
						b.Fatal(err)
					}
				}
				claiming, settling, plain = claiming+claimed.Sub(began), settling+settled.Sub(claimed), plain+time.Since(settled)
			}
			b.ReportMetric(float64(claiming.Microseconds())/float64(b.N), "µs/claim")
			b.ReportMetric(float64(settling.Microseconds())/float64(b.N), "µs/settle")
			b.ReportMetric(float64(plain.Microseconds())/float64(2*b.N), "µs/plain")
		})
	}
}

func BenchmarkSpill(b *testing.B) {
	r := newRig(b, servers.Mongo(b), flowBox())
	storetest.BenchmarkSpill(b, r.store, r.epoch)
}

func BenchmarkSpillOfLegs(b *testing.B) {
	box := flowBox()
	box.Routes = storetest.BenchRoutes()
	r := newRig(b, servers.Mongo(b), box)
	storetest.BenchmarkSpillOfLegs(b, r.store, r.epoch)
}

func BenchmarkReplay(b *testing.B) {
	r := newRig(b, servers.Mongo(b), flowBox())
	storetest.BenchmarkReplay(b, r.store, r.epoch)
}
