package mongo_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluicebox/sluicebox/store"
	"github.com/sluicebox/sluicebox/store/mongo"
)

func TestParseURL(t *testing.T) {
	for url, want := range map[string]string{
		"mongodb://localhost/shop": "shop",
		"mongodb://u:p%40ss@a:27017,b:27018/shop_1?replicaSet=rs0&authSource=admin": "shop_1",
		"mongodb://[::1]:27017/shop?tls=true":                                       "shop",
	} {
		opts, database, err := mongo.ParseURL(url, "app")
		if err != nil || database != want || *opts.AppName != "app" {
			t.Errorf("%s: %q, %v", url, database, err)
		}
	}
	const secret = "canary7"
	for url, part := range map[string]string{
		"mongodb://u:" + secret + "@localhost":                              "names no database",
		"mongodb://u:" + secret + "@localhost/":                             "names no database",
		"mongodb://u:" + secret + "@localhost/admin":                        "the server's own",
		"mongodb://u:" + secret + "@localhost/a.b":                          "invalid database",
		"mongodb://u:" + secret + "/x@localhost/shop":                       "percent-encode",
		"mongodb://u:" + secret + "?x@localhost/shop":                       "percent-encode",
		"mongodb://u:" + secret + "@x@localhost/shop":                       "",
		"mongodb://u:" + secret + "@localhost:port/shop":                    "",
		"mongodb://u:" + secret + "@localhost/shop?authMechanism=" + secret: "",
		"mongo://u:" + secret + "@localhost/shop":                           "of the form",
		"": "of the form",
	} {
		_, _, err := mongo.ParseURL(url, "")
		var setup *store.SetupError
		if !errors.As(err, &setup) || !strings.Contains(err.Error(), part) || setup.Remedy == "" {
			t.Errorf("%s: %v, want %q", url, err, part)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error shows the password: %v", url, err)
		}
	}
}
