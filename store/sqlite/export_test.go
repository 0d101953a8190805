package sqlite

// LastCommit returns the durability of the store's last write transaction.
func (s *Store) LastCommit() Durability { return s.writer.conn.durability }
