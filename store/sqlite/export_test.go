package sqlite

// LastCommit returns how durable the store's last write transaction was.
func (s *Store) LastCommit() Durability { return s.writer.conn.durability }
